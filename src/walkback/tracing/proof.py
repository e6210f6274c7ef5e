"""Is a recorded credit the one that trains its module, and does it belong to the samples it is written beside?

Two proofs, each by numbers that the reading of the signal had no part in:

- by weights: sent into the module that wrote the site, through that module's own backward pass, the credit must give
  the gradients that the user's run left in the module's weights; and with all credits replaced by zeros these
  gradients must be gone, or something else than the credit makes them.
- by samples: with the batch in another order the credits must come in that order. State of an earlier batch does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from walkback.errors import CreditError, cut
from walkback.network.values import widened


@dataclass(frozen=True)
class CreditProof:
    """What the weights of one module show of its credit."""

    # of the gradients that follow from the credit and those that the run left, relative to the latter; None where they
    # could not be compared
    difference: float | None = None
    why: str = ""  # the reason for that, a key of `notes.UNPROVEN`
    compared: tuple[str, ...] = ()  # names of the parameters that were compared
    # names of those whose gradient does not follow from the credit: feedback is sent in further below
    fed: tuple[str, ...] = ()
    # the share of the compared gradients that comes without the credit, from a loss inside the module
    added: float = 0.0
    detail: str = ""  # what an error said


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding may make."""
    return max(1e-3, 8 * torch.finfo(dtype).eps)


def apart(a: Tensor, b: Tensor) -> float:
    """Return ‖a − b‖ relative to the larger of the two; 0 where both are zero, NaN where one is not finite.

    >>> apart(torch.ones(4), -torch.ones(4))
    2.0
    """
    a, b = widened(a), widened(b)
    scale = float(torch.maximum(a.norm(), b.norm()))
    return float((a - b).norm()) / scale if scale else 0.0


def by_weights(
    left: Mapping[str, Tensor | None],
    sent: Mapping[str, Tensor],
    silent: Mapping[str, Tensor | None],
    shared: Collection[str] = (),
) -> CreditProof:
    """Compare the gradients that a run left in a module's weights with those that follow from its credit.

    Args:
        left: name -> gradient after the run, None where there is none.
        sent: name -> gradient that follows from the credit; a name is missing where no way leads there.
        silent: name -> gradient after a run with all credits zero. Where the two add up to `left`, that much of it came
            from elsewhere (a penalty, the other end of a tied weight).
        shared: names that are used outside the module too: what comes from there may hang on other credits.

    >>> g = torch.ones(2)
    >>> shown = by_weights({"w": g, "v": g}, {"w": g}, {"v": g})
    >>> shown.difference, shown.compared, shown.fed
    (0.0, ('w',), ('v',))
    """
    pairs: dict[str, tuple[Tensor, Tensor]] = {}  # what the credit should have given, and what it gives
    fed: list[str] = []
    added = [0.0]
    tied = False
    for name, grad in left.items():
        if grad is None or not bool(_wide(grad).any()):
            continue  # not used, or cleared by an optimiser in the backward pass
        g = _wide(grad)
        ours, rest = (torch.zeros_like(g) if t is None else _wide(t) for t in (sent.get(name), silent.get(name)))
        if ours.shape != g.shape or rest.shape != g.shape:
            return CreditProof(why="sharded")
        rest = rest.nan_to_num(0, 0, 0)  # NaN comes of the zero itself: a division by its length
        small = tolerance(grad.dtype) * float(g.norm())
        alone = float(rest.norm()) <= small
        adds_up = float(ours.norm()) > small and float((ours + rest - g).norm()) <= small
        if name in shared and not adds_up:
            tied = True
        elif alone or adds_up:
            pairs[name] = (g - rest, ours)
            added += [] if alone or name in shared else [float(rest.norm() / g.norm())]
        else:
            fed.append(name)
    if not pairs:
        cleared = all(grad is None for grad in left.values())
        stopped = not cleared and not any(bool(_wide(grad).any()) for grad in sent.values())
        why = "" if fed else "shared" if tied else "stopped" if stopped else "no-gradient"
        return CreditProof(why=why, fed=tuple(fed))
    theirs, ours = (torch.cat([pair[k].flatten() for pair in pairs.values()]) for k in (0, 1))
    if not bool(torch.isfinite(theirs).all() & torch.isfinite(ours).all()):
        return CreditProof(why="nonfinite", fed=tuple(fed))
    length, others = float(theirs.norm()), float(ours.norm())
    difference = float((ours - theirs).norm()) / length
    scale = float(ours @ theirs) / others**2 if others else 0.0
    if scale > 0:  # gradients that were clipped to a length, or unscaled: all of them by one factor
        difference = min(difference, float((scale * ours - theirs).norm()) / length)
    if difference > max(tolerance(left[name].dtype) for name in pairs) and _several_processes():  # type: ignore[union-attr]
        return CreditProof(why="ranks", fed=tuple(fed))
    return CreditProof(difference, "", tuple(pairs), tuple(fed), max(added))


def altered_inside(
    own: Mapping[str, Tensor], derived: Mapping[str, Tensor], names: Collection[str]
) -> tuple[float, tuple[str, ...]]:
    """Return (largest difference, names of the weights) where a module's own backward pass is not its derivative.

    Args:
        own: name -> gradient that follows from the credit by the module's own backward pass; a name is missing where
            that leads nowhere, as behind a cut.
        derived: the same by the derivative of what the module computes; a name is missing where no way leads there.
        names: those to compare.

    >>> altered_inside({"w": torch.ones(2), "v": torch.ones(2)}, {"w": torch.ones(2), "v": 2 * torch.ones(2)}, "wv")
    (0.5, ('v',))
    """
    known = [name for name in names if name in derived]
    own = {name: own[name] if name in own else torch.zeros_like(derived[name]) for name in known}
    sizes = {name: max(float(_wide(t).norm()) for t in (own[name], derived[name])) for name in known}
    off: dict[str, float] = {}
    for name in known:
        dtype = own[name].dtype
        if sizes[name] > 10 * torch.finfo(dtype).eps * max(sizes.values()):  # else it is rounding: a bias under a norm
            gap = apart(_wide(own[name]), _wide(derived[name]))
            off |= {name: gap} if gap > tolerance(dtype) else {}
    return max(off.values(), default=0.0), tuple(off)


def refuse_unlike(shown: CreditProof, site: int, module: str, dtype: torch.dtype, named: bool = False) -> None:
    """Raise CreditError where the weights show that the credit of a site is not what trains its module.

    `named`: it was read where the user said, at the output of a module in `writers`.
    """
    if shown.fed and not shown.compared and not shown.why:
        remedy = (
            "A module named in writers is read at its very output, above a feedback layer that ends it: name the last "
            "module below that layer, or leave writers out"
            if named
            else "End the module with the feedback layer, name as blocks (or with writers=[…]) the modules whose "
            "output the feedback belongs to"
        )
        raise CreditError(
            f"Expected the credit of site {site} to train the module that writes it, {module}, but all "
            f"{len(shown.fed)} parameters that get a gradient there get one with the credit replaced by zeros too: "
            "feedback is sent in below what the module returns (a feedback layer before its last operation?), or .grad "
            f"is written by hand, and the signal at the output is not used. {remedy}, or give the credits as a "
            "function of the trace."
        )
    if shown.difference is not None and shown.difference > tolerance(dtype):
        raise CreditError(
            f"Expected the credit of site {site} to give the gradients that the run left in the weights of {module}, "
            f"but they differ by {shown.difference:.1%} ({len(shown.compared)} parameters, {_first(shown.compared)}): "
            "the signal that was read is not the one that trains the module. Another signal may come to it, or the "
            "function changes .grad after the backward pass (leave weight decay and clipping by value out of it). "
            "Name the modules to read with writers=[…], or give the credits as a function of the trace."
        )


def farthest(credits: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[float, int]:
    """Return (largest difference that rounding does not explain, its site); NaN where one is not finite."""
    gaps = [apart(a, b) for a, b in zip(credits, others)]
    if any(gap != gap for gap in gaps):
        return float("nan"), next(site for site, gap in enumerate(gaps) if gap != gap)
    over = [gap if gap > tolerance(a.dtype) else 0.0 for gap, a in zip(gaps, credits)]
    return max(over), over.index(max(over))


def in_one_line(error: Exception) -> str:
    """Return what went wrong in the user's code, on one line.

    >>> in_one_line(KeyError("loss"))
    "KeyError: 'loss'"
    """
    return cut(f"{type(error).__name__}: {error}", 120)


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _wide(t: Tensor) -> Tensor:
    return widened(t.to_dense() if t.layout != torch.strided else t)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + ("…" if len(names) > 3 else "")
