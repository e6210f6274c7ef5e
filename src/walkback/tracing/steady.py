"""Passes of a network that writes to what it keeps: each begins where the user left it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn

from walkback.tracing.credit import LOOKS, Asked
from walkback.tracing.kept import unwritten
from walkback.tracing.untouched import untrained


class Steady:
    """Sees what the passes of a session write by themselves, and takes it back."""

    def __init__(self, model: nn.Module, asked: Asked) -> None:
        self._model, self._asked = model, asked
        self._looked = 0  # passes that were looked at
        self._moves = False  # the network writes to tensors that it keeps
        self._quiet = 0  # passes with other weights that wrote to none of them

    @contextmanager
    def begin(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Let a pass inside begin where the user left the network, also the tenth; or with other weights by name.

        Otherwise no two passes of it could be compared. Other weights are looked at in the first two passes and where
        those wrote something. Where the user may train meanwhile, see `look`.
        """
        watch = weights is not None and (self._moves or self._quiet < LOOKS)
        with unwritten(weights.values()) if weights is not None and watch else nullcontext([]) as written:
            try:
                yield
            finally:
                if self._moves and self._asked.alone and self._asked.found is not None:
                    self._asked.found.rewind()
        if watch:
            self._moves, self._quiet = self._moves or bool(written), self._quiet + 1

    @contextmanager
    def look(self) -> Iterator[None]:
        """See what a pass inside writes by itself, in the first two and where they wrote something.

        In a session in which the user may train, what it writes to weights is put back at once.
        """
        found, alone = self._asked.found, self._asked.alone
        if found is None or (self._looked == LOOKS and not self._moves):
            yield
            return
        with nullcontext([]) if alone else untrained(self._model) as written:
            yield
        changed = found.values.changed() if alone else written
        self._moves, self._looked = self._moves or bool(changed), min(self._looked + 1, LOOKS)
        self._asked.moved(changed)
