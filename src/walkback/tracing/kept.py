"""Copies of tensors, to see what was written since and to put it back, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import c_char
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from walkback.network.prints import fingerprints
from walkback.network.values import inner


class Kept:
    """Copies of tensors, to see what was written since and to put it back, bit for bit.

    They are compared by value, since batch norm, `.data` and numpy write past the version counter, and only what
    differs is written. What holds the same bits again gets its version back: a backward pass begun before can still be
    finished. Tensors without values (meta, freed by sharding) are left out.

    Args:
        tensors: to copy.
        spare: memory of copies that nobody needs any more. What is used of it is taken out of the list.
    """

    def __init__(self, tensors: Iterable[Tensor], spare: list[Tensor] | None = None) -> None:
        spare = [] if spare is None else spare
        self._of = {id(t): t for t in tensors}
        self._kept = [
            (t, part, part.detach(), _copy(part, spare))
            for t in self._of.values()
            for part in inner(t)
            if _has_values(part)
        ]
        self._versions = [
            (part, part._version, _unsafe_preserve_version_counter(part))
            for _, part, *_ in self._kept
            if not part.is_inference()
        ]

    def some(self, tensors: Iterable[Tensor]) -> Kept | None:
        """Return the same copies of some of the tensors; None unless all of them are here, as they were copied."""
        wanted = {id(t): t for t in tensors}
        held = {id(item[0]) for item in self._kept}
        if not wanted.keys() <= held or any(part._version != version for part, version, _ in self._versions):
            return None
        found = Kept(())
        found._of = wanted
        found._kept = [item for item in self._kept if id(item[0]) in wanted]
        parts = {id(part) for _, part, *_ in found._kept}
        found._versions = [item for item in self._versions if id(item[0]) in parts]
        return found

    def is_of(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether these are the tensors that were copied."""
        return self._of.keys() == {id(t) for t in tensors}

    def copies(self) -> list[Tensor]:
        """Return the copies."""
        return [copy for *_, copy in self._kept]

    def leave(self, tensors: Iterable[Tensor]) -> None:
        """Forget these: they are someone else's to change."""
        theirs = {id(t) for t in tensors}
        self._kept = [item for item in self._kept if id(item[0]) not in theirs]
        left = {id(part) for _, part, *_ in self._kept}
        self._versions = [item for item in self._versions if id(item[0]) in left]

    def _written(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        here = [item for item in self._kept if _has_values(item[2])]
        return [item for item, differs in zip(here, _differ([(now, copy) for _, now, _, copy in here])) if differs]

    def changed(self) -> list[Tensor]:
        """Return the tensors that hold something else by now."""
        return [t for t, *_ in self._written()]

    def put_back(self) -> list[Tensor]:
        """Put back what differs, and return the tensors that did."""
        written = self._written()
        with ExitStack() as each:  # one that can't be put back does not keep the others from it
            each.callback(self._set_versions)
            for _, now, _, copy in written:
                each.callback(_put_back, now, copy)
            for _, now, memory, _ in self._kept:
                if _has_moved(now, memory):
                    each.callback(_move_back, now, memory)  # before its numbers are written
        return [t for t, *_ in written]

    def _set_versions(self) -> None:
        for part, version, counter in self._versions:
            if part._version != version:
                counter.__exit__()


@contextmanager
def unwritten(tensors: Iterable[Tensor], spare: list[Tensor] | None = None) -> Iterator[list[Tensor]]:
    """Put back on leaving, bit for bit, what every tensor held on entering, also where code wrote to its `.data`.

    Yields a list that has on leaving those that had been written; see `Kept`. `spare` has the copies afterwards, whose
    memory serves the next call: new memory is slow.

    >>> kept, other = torch.tensor([1.0, float("nan")]), torch.zeros(2)
    >>> with unwritten([kept, other]) as written:
    ...     _ = other.data.add_(1)
    >>> [t is other for t in written], other
    ([True], tensor([0., 0.]))
    """
    kept, written = Kept(tensors, spare), []
    try:
        yield written
    finally:
        written += kept.put_back()
        if spare is not None:
            spare[:] = kept.copies()


def _has_values(t: Tensor) -> bool:
    return not t.is_meta and (t.layout != torch.strided or t.numel() == 0 or t.untyped_storage().size() > 0)


AT_ONCE = ("cpu",)  # types of devices whose answers need no waiting: there `torch.equal` is the fastest


def _differ(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[bool]:
    """Return whether the two of each pair differ, with one wait per device."""
    answers = [_differs(now, copy) for now, copy in pairs]
    waiting: dict[torch.device, list[int]] = {}
    for i, answer in enumerate(answers):
        if isinstance(answer, Tensor):
            waiting.setdefault(answer.device, []).append(i)
    for there in waiting.values():
        for i, answer in zip(there, torch.stack([torch.as_tensor(answers[i]) for i in there]).tolist()):
            answers[i] = answer
    return [bool(answer) for answer in answers]


SMALL = 2**20  # bytes of a tensor that are kept as they are, since that is the fastest
Spare = dict[int, list[bytearray]]  # by size, memory of copies that nobody needs any more: new memory is slow


def imprint(t: Tensor, spare: Spare | None = None) -> bytearray | Tensor:
    """Return what a later write to a tensor shows in: its bytes, or a number of each sample of a large one.

    >>> a = torch.zeros(2, 3)
    >>> before = imprint(a)
    >>> a.data[0, 1] = -0.0
    >>> shows(before, a)
    True
    """
    there = _in_a_row(t)
    bytes_ = None if there is None or there.nbytes > SMALL else _bytes_of(there)
    return fingerprints(t) if bytes_ is None else _taken(bytes_, spare)


def shows(before: bytearray | Tensor, t: Tensor) -> bool:
    """Return whether a tensor was written since `imprint`."""
    if isinstance(before, bytearray):
        there = _in_a_row(t)
        return there is None or before != _bytes_of(there)
    now = imprint(t)
    return isinstance(now, bytearray) or not torch.equal(now, before)


def _in_a_row(t: Tensor) -> Tensor | None:
    """Return a tensor of this process's memory, or a copy of it where its bytes don't lie in a row; None of others."""
    if type(t) is not Tensor or t.device.type not in AT_ONCE or t.layout != torch.strided or t.is_quantized:
        return None
    return t if _is_plain(t) else t.detach().resolve_conj().resolve_neg().contiguous()


def _is_plain(t: Tensor) -> bool:
    return t.is_contiguous() and not t.is_neg() and not t.is_conj()


def _bytes_of(t: Tensor) -> Any:
    """Return the bytes of a tensor where they lie, for as long as it lives; None where they were freed.

    Not by `numpy()`: its memory could not be resized ever after, and it may be the user's.
    """
    size = t.nbytes
    if t.storage_offset() * t.element_size() + size > t.untyped_storage().nbytes():
        return None
    return (c_char * size).from_address(t.data_ptr()) if size else bytearray()


def _taken(there: Any, spare: Spare | None) -> bytearray:
    """Return a copy of bytes."""
    free = spare.get(len(there)) if spare else None
    taken = free.pop() if free else bytearray(len(there))
    if taken:
        memoryview(taken)[:] = memoryview(there).cast("B")
    return taken


class Given:
    """Tensors that are shown to code which must not write them; what it wrote is put back, bit for bit.

    As `unwritten`, with less around it, for tensors whose bytes lie in a row in the memory of this process. Others are
    in `others`.

    Args:
        tensors: to take down.
        spare: memory of copies that nobody needs any more. `put_back` returns what it took.
    """

    def __init__(self, tensors: Iterable[Tensor], spare: Spare) -> None:
        self._spare, self.others = spare, []
        self._held: list[tuple[Tensor, Tensor, bytearray, int, Any]] = []
        for t in tensors:
            plain = not t.is_inference() and _in_a_row(t) is t and t.numel() > 0
            there = _bytes_of(t) if plain else None
            if there is None:
                self.others.append(t)
                continue
            counter = _unsafe_preserve_version_counter(t)
            self._held.append((t, t.detach(), _taken(there, spare), t._version, counter))

    def put_back(self) -> bool:
        """Put back what was written, and return whether anything was."""
        written = False
        for t, memory, taken, version, counter in self._held:
            moved = _has_moved(t, memory)
            if moved:
                _move_back(t, memory)
            there = _bytes_of(t)  # None where they were freed
            if moved or there is None or taken != there:
                written = True
                if there is not None:
                    _put_back(t, torch.frombuffer(taken, dtype=t.dtype).view(t.shape))
            if t._version != version:
                counter.__exit__()
            self._spare.setdefault(len(taken), []).append(taken)
        self._held.clear()
        return written


def differ(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold different numbers, or are of different kinds."""
    pairs = list(zip(inner(one), inner(other)))
    return type(one) is not type(other) or any(_differ([(a.detach(), b.detach()) for a, b in pairs]))


def _differs(now: Tensor, copy: Tensor) -> bool | Tensor:
    """Return whether any bit differs, as a tensor where it has to be waited for."""
    if now.device != copy.device and copy.device.type == "cpu":
        now = now.cpu()  # the copy did not fit beside it
    if (now.shape, now.dtype, now.device, now.layout) != (copy.shape, copy.dtype, copy.device, copy.layout):
        return True
    try:
        pairs = list(zip(_bits(now), _bits(copy)))
    except (RuntimeError, KeyError):
        return True  # of a kind that can't be looked at: put back in any case
    if any(a.shape != b.shape for a, b in pairs):
        return True
    if now.device.type in AT_ONCE:
        return not all(torch.equal(a, b) for a, b in pairs)
    return torch.stack([(a != b).any() for a, b in pairs]).any()


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(t: Tensor) -> list[Tensor]:
    """Return a tensor's bits as integers: a NaN is equal to itself, and numbers of every type can be compared."""
    t = t.detach()
    if t.layout == torch.sparse_coo:
        return [t._indices(), *_bits(t._values())]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), *_bits(t.values())]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), *_bits(t.values())]
    if t.is_quantized:
        return [t.int_repr()]
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    return [t.resolve_neg().view(_WORDS[t.element_size()])]


def _copy(t: Tensor, spare: list[Tensor]) -> Tensor:
    for i, copy in enumerate(spare):
        same = (copy.shape, copy.dtype, copy.device) == (t.shape, t.dtype, t.device)
        plain = all(type(x) is Tensor and x.layout == torch.strided and not x.is_quantized for x in (t, copy))
        if same and plain:
            return spare.pop(i).copy_(t.detach())
    try:
        return t.detach().clone()
    except torch.OutOfMemoryError:
        return t.detach().cpu()


def _put_back(now: Tensor, copy: Tensor) -> None:
    with torch.inference_mode() if now.is_inference() else torch.no_grad():
        if now.layout == torch.strided:  # of rows that share their memory (`expand`), the first
            shared = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in now.stride())
            now, copy = now[shared], copy[shared]
        now.copy_(copy)


def _has_moved(now: Tensor, memory: Tensor) -> bool:
    """Return whether a tensor's memory, dtype or shape is another (`p.data = other`); others may share the old one."""
    if now.layout != torch.strided or memory.layout != torch.strided or not _has_values(memory):
        return now.layout != memory.layout
    here, there = ((t.dtype, t.device, t.shape, t.stride(), t.is_meta or t.data_ptr()) for t in (now, memory))
    return here != there


def _move_back(now: Tensor, memory: Tensor) -> None:
    now.data = memory
