"""What the first batch shows of a network, found once: Capture -> Layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError
from walkback.network.anatomy import Anatomy
from walkback.network.batch import Inputs, mapped, split
from walkback.network.stacks import BY_ORDER
from walkback.network.tokens import is_time_last, read_at, some_tokens
from walkback.network.values import hidden_of, largest, logits_of, modules_of, stream_of, widest
from walkback.notes import Note
from walkback.tracing.calls import listen
from walkback.tracing.links import find_receivers, is_no_chain
from walkback.tracing.streams import refuse_copy

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture

_FEW = 16  # samples that show what blocks return


@dataclass(frozen=True)
class Layout:
    """How a network is read: many fields, since all that the first batch decides stands here."""

    # True when blocks return the residual branch, False when the new state, None while it is not known
    branch: bool | None = None
    pool: int | str | None = None  # where a (B, T, d) state is read, see `Anatomy`
    pool_found: bool = False  # `pool` comes from the gradient of the first batch, and must hold for every other
    tokens: tuple[int, ...] | None = None  # where the readout averages over some of the tokens
    exact: bool = False  # the readout averages over tokens of each sample, which its gradient shows
    masked: bool = True  # the inputs' `attention_mask` is of the tokens of the stream, not of an encoder's beside it
    time_last: bool = False  # the stream is (B, C, T)
    axis: int = 0  # of the batch in the stream: 1 in stacks of (T, B, d)
    copies: bool = False  # states are copied when captured, for networks that write them in place
    widens: bool = False  # branches of a lower precision than the stream are handed on in the stream's
    received: bool = False  # sites are what the next block, and the readout, receive: steps are made outside of blocks
    receivers: tuple[str, ...] = ()  # the norms before the blocks that are handed the stream; (): the blocks themselves
    tail: int | None = None  # which of the tensors made after the last block the last site is; None: what is read
    known: bool = False  # a batch has shown all this

    def batch_first(self, h: Tensor) -> Tensor:
        """Return the stream as a trace has it, (B, T, d), and the way back."""
        if self.time_last and h.ndim == 3:
            return h.transpose(1, 2)
        return h.transpose(0, 1) if self.axis else h


def infer_layout(
    capture: Capture, grads: tuple[Tensor, ...], output: Any, batch: int, unsure: bool
) -> tuple[Layout, list[Note]]:
    """Find what blocks return and where the readout reads; AnatomyError where the network can't be read.

    Args:
        capture: of a pass with `look`.
        grads: at its sites, as the stream lies.
        output: what the network returned.
        batch: B.
        unsure: block 1 may have received a copy of the stream.
    """
    layout, declared, notes = capture.layout, hidden_of(output), []
    try:
        refuse_shapes((*capture.given.values(), *capture.made.values()), batch, layout.axis)
    except AnatomyError as error:
        for i in capture.returned:
            error.add_note(f"({capture.of_several(i)})")
        raise
    _refuse_condition(capture)
    if layout.received:  # found by the pass before this one
        shown = None
    else:
        try:
            shown = find_branch(capture, declared, layout.branch is None)
        except AnatomyError:
            found = None if layout.branch is not None else find_receivers(capture)
            if found is None:
                raise
            names, tail = found
            return replace(layout, branch=False, received=True, receivers=names, tail=tail), [Note("received-sites")]
    if layout.branch is not None and shown is not None and shown is not layout.branch:
        named, seen = ("branch", "new state") if layout.branch else ("new state", "branch")
        raise AnatomyError(
            f"Expected blocks that return the {named}, as the anatomy says (branch={layout.branch}), but this network "
            f"adds up as if they return the {seen}. Leave branch out, and it is found by running a batch."
        )
    branch = shown if layout.branch is None else layout.branch
    if branch and unsure:
        refuse_copy(capture, grads)
    layout = capture.layout = replace(layout, branch=branch, masked=layout.masked and not capture.cross_attends)
    states = capture.states(branch)
    notes += _compared(declared, states)
    if states[-1].ndim == 3 and not layout.axis:
        layout = replace(layout, time_last=is_time_last(grads[-1], *_sizes(capture.anatomy)))
    if states[-1].ndim == 3 and layout.pool is None:
        deepest = layout.batch_first(grads[-1])
        layout = replace(layout, pool=read_at(deepest), pool_found=True)
        if not bool((deepest != 0).any()):
            notes.append(Note("token-not-found"))
        if layout.pool == "mean" and logits_of(output).ndim == 2:
            some = some_tokens(deepest)
            layout = replace(layout, tokens=None if some is None else tuple(some), exact=some is None)
    if states[-1].ndim == 3 and isinstance(layout.pool, int):
        tokens = layout.batch_first(states[-1]).shape[1]
        if not -tokens <= layout.pool < tokens:
            raise AnatomyError(f"Expected pool to be one of {tokens} tokens, but got {layout.pool}.")
    # Under autocast a branch may be float16 while the stream is not: a gradient taken at the branch would be rounded to
    # float16, the stream's own is not.
    narrow = any(made.dtype != capture.given[i].dtype for i, made in capture.made.items())
    return replace(layout, widens=layout.widens or bool(branch and narrow), known=branch is not None), notes


def _sizes(anatomy: Anatomy) -> tuple[set[int], set[int]]:
    """Return the sizes that weights in the blocks have for last axes, and for channels before a last axis of time."""
    wide: set[int] = set()
    channels: set[int] = set()
    for block in anatomy.blocks:
        for m in modules_of(block) if isinstance(block, nn.Module) else ():
            if isinstance(m, nn.Linear):
                wide.add(m.in_features)
            elif isinstance(m, nn.LayerNorm):
                wide.add(m.normalized_shape[-1])
            elif isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
                channels.add(m.in_channels)
            elif isinstance(m, nn.BatchNorm1d):
                channels.add(m.num_features)
    return wide, channels


def as_called(anatomy: Anatomy, misplaced: Mapping[str, str], model: nn.Module) -> Anatomy:
    """Return the anatomy with stem and readout as the network called them, where their places were guessed."""
    if BY_ORDER not in anatomy.guesses:
        return anatomy
    blocks = slice(len(anatomy.stems), len(anatomy.stems) + len(anatomy.blocks))
    placed = [(name, misplaced.get(name, "before")) for name in anatomy.names[: blocks.start]]
    placed += [(name, misplaced.get(name, "after")) for name in anatomy.names[blocks.stop :]]
    stem, readout = (tuple(name for name, where in placed if where == w) for w in ("before", "after"))
    guesses = tuple(text for text in anatomy.guesses if text != BY_ORDER)
    return replace(anatomy, stem=stem, readout=readout, names=(), guesses=guesses).resolve(model)


def find_axis(capture: Capture, run: Callable[[Inputs], object], x: Inputs, y: Tensor) -> int:
    """Return 0 for a stream of (B, …), 1 for (T, B, d); where both are as long, a smaller batch shows it."""
    batch, shape = len(y), capture.given[0].shape
    if len(shape) != 3 or shape[1] != batch:
        return 0
    if batch == 1:
        return int(shape[0] != 1)
    seen: list[torch.Size] = []

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = stream_of(module, args, kwargs)
        seen.append(shape if stream is None else stream.shape)

    block = capture.anatomy.blocks[0]
    assert isinstance(block, nn.Module)
    fewer, _ = next(split(x, y, batch - 1))
    with torch.no_grad(), ExitStack() as stack:
        listen(stack, block, look, None, capture.anatomy.by_forward)
        run(mapped(fewer, torch.clone))
    return int(seen[0][0] == shape[0] and seen[0][1] == batch - 1)


def refuse_shapes(states: Iterable[Tensor], batch: int, axis: int = 0) -> None:
    """Raise AnatomyError unless all states have `batch` samples along their `axis`."""
    for site, h in enumerate(states):
        if h.ndim < 2 or h.shape[axis] != batch:
            raise AnatomyError(
                f"Expected states of {batch} samples, (B, d), (B, T, d), (T, B, d) or (B, C, H, W) with B = "
                f"{batch}, but site {site} has shape {tuple(h.shape)}. Name other modules as blocks, or put the "
                "batch first."
            )


def _refuse_condition(capture: Capture) -> None:
    """Refuse what all blocks are handed alike: that is a condition, while the stream changes from block to block."""
    first, *rest = capture.given.values()
    same = bool(rest) and all(h.data_ptr() == first.data_ptr() and h.shape == first.shape for h in rest)
    if same and first.numel() and any(made.data_ptr() != first.data_ptr() for made in capture.made.values()):
        raise AnatomyError(
            "Expected blocks to receive the stream as their first tensor, but all of them receive the same one "
            f"first, of shape {tuple(first.shape)}: a condition, a mask or an embedding? Take the stream first in "
            "their forward, or wrap them in modules that do."
        )


def _compared(declared: Sequence[Tensor] | None, states: tuple[Tensor, ...]) -> list[Note]:
    """Return a note where `return_hidden`, which scripts log, is not what the network computes with."""
    if declared is None:
        return []
    if len(declared) != len(states):
        return [Note("hidden-count", None, {"states": len(declared), "sites": len(states)})]
    for site, (logged, state) in enumerate(zip(declared, states)):
        ours, theirs = state[:_FEW], logged[:_FEW]
        same = logged.shape == state.shape and bool(
            torch.equal(theirs, ours)
            or torch.allclose(theirs, ours.to(theirs.dtype), rtol=1e-2, atol=0, equal_nan=True)
        )
        if not same:
            return [Note("hidden-differs", site)]
    return []


def find_branch(capture: Capture, declared: Sequence[Tensor] | None, needed: bool = True) -> bool | None:
    """Return whether blocks return the branch or the new state; None where the numbers of this batch can't tell."""
    votes: list[bool] = []
    given, made, read, last = capture.given, capture.made, capture.read, capture.depth - 1
    misfit = None
    for i in range(last + 1):
        if i < last:
            new = given[i + 1]
        elif declared is not None and declared[-1].shape == made[i].shape:
            new = declared[-1]
        elif read is not None and (read.shape == made[i].shape or made[i].ndim == 3):
            new = read  # of a token only, where the readout slices it before the norm
        else:
            continue
        if new.shape == made[i].shape:
            new = capture.layout.batch_first(new)
        old, out = (capture.layout.batch_first(h)[:_FEW] for h in (given[i], made[i]))
        vote = _which(old, out, new[:_FEW])
        if vote == "neither":
            misfit = misfit or i + 1
        elif vote is not None:
            votes.append(vote == "branch")
    if misfit is not None and misfit <= last:
        changed = "something between them changes the stream (a norm, a scale, a reshape). Name blocks that include it."
        if is_no_chain(capture, misfit - 1):
            changed = (
                "the next one does not even depend on it. The blocks are no chain (parallel or Siamese towers, "
                "branches in one list). Name those of one stream, in its order."
            )
        raise AnatomyError(
            f"Expected {capture.anatomy.called(misfit - 1)} to return the residual branch f or the new state "
            f"h + f, but what the next block receives is neither: {capture.of_several(misfit - 1) or changed}"
        )
    if len(set(votes)) > 1:
        raise AnatomyError(
            "Expected all blocks to return the same thing, but some return the residual branch and some the "
            "new state. Wrap them so that they agree."
        )
    if votes:
        return votes[0]
    if not needed or not all(bool(torch.isfinite(t).all()) for t in (*given.values(), *made.values())):
        return None  # nothing can be told from NaN; the next batch may tell
    if last > 0:
        return False  # branch and state give the same numbers everywhere: either reading is right
    raise AnatomyError(
        "Expected to see whether the only block returns the residual branch or the new state, but nothing "
        "after it shows it. Say which: Anatomy.of(model, ..., branch=True) or branch=False."
    )


def _which(given: Tensor, made: Tensor, new: Tensor) -> str | None:
    """Return whether `new` continues `made` as the branch or as the state; None: these numbers can't tell."""
    if given.shape != made.shape:  # what is returned can't be a branch
        if new.shape != made.shape or not bool(torch.isfinite(new.sum(dtype=widest(new.device)))):
            return None
        return "state" if torch.allclose(made, new, rtol=1e-3, atol=1e-3 * largest(new)) else "neither"
    if new.shape != made.shape:
        if new.ndim != 2 or made.ndim != 3:
            return None
        votes = [_which(given[:, t], made[:, t], new) for t in (0, -1)]
        return next((vote for vote in votes if vote in ("branch", "state")), None)
    wide = widest(new.device)
    if not bool(torch.isfinite(new.sum(dtype=wide))):
        return None
    state, branch = torch.equal(made, new), torch.equal(given + made, new)
    if state or branch:  # the network's own sum, to the last bit
        return None if state and branch else "state" if state else "branch"
    as_state, as_branch = ((h.to(wide) - new.to(wide)).norm() for h in (made, given + made))
    if torch.minimum(as_state, as_branch) > 1e-3 * new.to(wide).norm():
        return "neither"
    if as_state == as_branch:
        return None
    return "branch" if as_branch < as_state else "state"
