"""One network of the corpus: how it is built, where its sites are by hand, and what `walkback.measure` makes of it.

The second derivation shares no code with the package: hooks on modules whose names are written down (or a forward pass
that marks its own sites), float64, and one `backward` of the summed loss.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb

Norms = Callable[[Tensor], Tensor]  # a state or a gradient (B, ...) -> (B,)
CLASSES = ("right", "part, said", "part, unsaid", "silently wrong", "refused clearly", "refused unclearly or crashed")


@dataclass(frozen=True)
class Case:
    """A network, its batch, and its sites by hand."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, Tensor]]
    sites: Sequence[str] = ()  # "path": what the module returns first; "in:path": what it is given; (): marked, or none
    reads: Any = None  # None: the whole state; an index: that token; "mean"; a list of tokens; or a function of states
    loss: Callable[[Any, Tensor], Tensor] | None = None  # (B,) losses of what the network returns; None: cross-entropy
    last: int = 10**6  # calls of a module that is called more often are not counted beyond this many


def outputs(container: str, count: int) -> tuple[str, ...]:
    """Return the sites of blocks that return the new state: what the first is given, and what each returns."""
    return (f"in:{container}.0", *(f"{container}.{i}" for i in range(count)))


def inputs(container: str, count: int, last: str) -> tuple[str, ...]:
    """Return the sites of blocks that are given the stream: what each is given, and what `last` is given."""
    return (*(f"in:{container}.{i}" for i in range(count)), f"in:{last}")


# -- by hand -------------------------------------------------------------------------------------------------

_marks: list[tuple[Tensor, ...]] | None = None


def mark(*state: Tensor) -> None:
    """Say in a forward pass that this is a site: its tensor, or its tensors."""
    if _marks is not None:
        for part in state:
            if not part.requires_grad:  # made of buffers alone
                part.requires_grad_()
        _marks.append(state)


def by_hand_now() -> bool:
    """Return whether sites are derived by hand: g_l is of the forward pass, so cuts and own backward passes are out."""
    return _marks is not None


def cut(state: Tensor) -> Tensor:
    """Return a state without its graph, as greedy code hands it on; by hand the cut is left out."""
    return state if by_hand_now() else state.detach()


def first(values: Any) -> Tensor | None:
    """Return the first tensor of real numbers in what a module takes or returns."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else None
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        return next((found for v in values if (found := first(v)) is not None), None)
    return None


def norms_of(reads: Any) -> Norms:
    """Return the norm per sample that a case asks for."""
    if callable(reads):
        return cast(Norms, reads)

    def norms(h: Tensor) -> Tensor:
        if h.ndim != 3 or reads is None:
            return h.flatten(1).norm(dim=1)
        if reads == "mean":
            return h.norm(dim=-1).mean(1)
        return h[:, [reads] if isinstance(reads, int) else list(reads)].norm(dim=-1).mean(1)

    return norms


def logits_of(out: Any) -> Tensor:
    """Return the logits in what a network returned."""
    if getattr(out, "logits", None) is not None:
        return out.logits
    if isinstance(out, dict) and "logits" in out:
        return out["logits"]
    found = first(out if isinstance(out, (Tensor, tuple, list)) else list(out.values()))
    assert found is not None
    return found


def cross_entropy(out: Any, y: Tensor) -> Tensor:
    """Return (B,) losses of classes, or their mean over tokens."""
    logits = logits_of(out)
    if logits.ndim == 2:
        return F.cross_entropy(logits, y, reduction="none")
    return F.cross_entropy(logits.transpose(1, 2), y, reduction="none").mean(1)


def next_token(out: Any, y: Tensor) -> Tensor:
    """Return (B,) losses where position t predicts label t + 1."""
    return F.cross_entropy(logits_of(out)[:, :-1].transpose(1, 2), y[:, 1:], reduction="none").mean(1)


def by_hand(case: Case, model: nn.Module) -> tuple[list[float], list[float]]:
    """Return mean ‖h_l‖ and ‖g_l‖ / 128 over samples, at the sites of the case, in float64."""
    global _marks
    x, y = case.batch()
    kept: dict[str, list[Tensor]] = {name: [] for name in case.sites}
    handles = []
    for name in case.sites:
        module = model.get_submodule(name.removeprefix("in:"))

        def before(_: Any, args: Any, kwargs: Any, name: str = name) -> None:
            found = first((args, kwargs.get("hidden_states"), kwargs))
            assert found is not None
            kept[name].append(found)

        def after(_: Any, args: Any, out: Any, name: str = name) -> Tensor | None:
            found = first(out)
            assert found is not None
            kept[name].append(found)
            # what comes behind may write in place: it gets a copy
            copied = isinstance(out, Tensor) and found is out
            return found.clone() if copied else None

        if name.startswith("in:"):
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(after))
    _marks = []
    try:
        with torch.enable_grad():
            asks = inspect.signature(model.forward).parameters.get("labels")
            more = (y,) if asks is not None and asks.default is inspect.Parameter.empty else ()
            out = model(**x) if isinstance(x, dict) else model(x, *more)
            # of a module that is called again and again, what it is given is a site once
            once = {f"in:{name}" for name in case.sites}
            counts = {name: 1 if name in once else case.last for name in case.sites}
            states = _marks if not case.sites else [(h,) for name in case.sites for h in kept[name][: counts[name]]]
    finally:
        _marks = None
        for handle in handles:
            handle.remove()
    if not states:  # no one stream: nothing that is read could be right
        return [], []
    losses = (case.loss or cross_entropy)(out, y)
    flat = [t for state in states for t in state]
    grads = iter(torch.autograd.grad(losses.sum(), flat))
    norms = norms_of(case.reads)

    def size(parts: Sequence[Tensor]) -> float:
        return float(torch.stack([norms(p.detach()) for p in parts]).square().sum(0).sqrt().mean())

    return [size(s) for s in states], [size([next(grads) for _ in s]) / 128 for s in states]


# -- as the package reads it ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of a case: one of CLASSES, and why."""

    kind: str
    why: str = ""


def run(case: Case) -> Outcome:
    """Build the network, derive its norms by hand, measure it, and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = built(case)
        return judged(case, model, by_hand(case, built(case)), {})


def built(case: Case) -> nn.Module:
    """Return the network in float64 and eval mode, with no weights of zero: their sites would have no norm."""
    torch.manual_seed(0)
    model = case.build().double().eval()
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.normal_(std=0.1)
    return model


def judged(
    case: Case,
    model: nn.Module,
    wanted: tuple[list[float], list[float]],
    anatomy: dict[str, Any],
    derived: bool = False,
) -> Outcome:
    """Measure the network and say which of CLASSES it falls into."""
    try:
        batches = [case.batch()]
        loss = None if case.loss in (None, next_token) else case.loss
        reference = "derived" if derived else None
        measured = wb.measure(model, batches, loss=loss, anatomy=anatomy or None, reference=reference)
        copy.deepcopy(model)
    except wb.WalkbackError as error:
        return Outcome("refused clearly" if anatomy else refused(case, model, wanted, error), str(error))
    except Exception as error:  # whatever it is, it is no answer
        return Outcome("refused unclearly or crashed", f"{type(error).__name__}: {error}")
    got = list(zip(measured.h_norm, measured.g_norm))
    want = list(zip(*wanted))
    if len(got) == len(want) and all(map(alike, got, want)):
        return Outcome("right")
    if measured.altered is not None and not derived:  # the report says so, and to measure with reference="derived"
        return judged(case, model, wanted, anatomy, derived=True)
    places = [next((i for i, w in enumerate(want) if alike(g, w)), None) for g in got]
    if any(note.code == "layers-summed" for note in measured.notes):  # what it says: the stream may be their sum
        return Outcome("part, said", "the outputs of layers that are added")
    if any(note.code == "steps-outside" for note in measured.notes):  # site 0 may be a state of theirs in another form
        inner = places[1:]
        if inner and None not in inner and sorted(set(inner)) == inner:  # type: ignore[type-var]
            return Outcome("part, said", f"sites {places} of {len(want)}, with steps before or after that are named")
    if None in places or sorted(set(places)) != places:  # type: ignore[type-var]
        shown = [[float(f"{v or 0:.4g}") for pair in rows for v in pair] for rows in (got, want)]
        return Outcome("silently wrong", f"got {shown[0]}, by hand {shown[1]}")
    said = any(note.code in ("guessed", "blocks-share", "layers-left-out") for note in measured.notes)
    return Outcome("part, said" if said else "part, unsaid", f"sites {places} of {len(want)}")


def alike(got: Sequence[float | None], want: Sequence[float]) -> bool:
    """Return whether the two norms of a site agree."""
    return all(g is not None and abs(g - w) <= 1e-6 * abs(w) for g, w in zip(got, want))


def refused(case: Case, model: nn.Module, wanted: Any, error: Exception) -> str:
    """A refusal is clear if every line that it suggests works: it measures, and measures right or says why not."""
    for line in re.findall(r"Anatomy\.of\(model, (.+?)\)(?:\n|$|\.)", str(error)):
        if "…" in line or "..." in line or "path.to" in line:
            continue
        try:
            anatomy = eval(f"dict({line})")  # the line that a user would copy
        except SyntaxError:
            return CLASSES[5]
        outcome = judged(case, model, wanted, anatomy)
        if outcome.kind not in ("right", "part, said"):
            return CLASSES[5]
    return CLASSES[4]
