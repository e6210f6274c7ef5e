"""The rows of a watch while training goes on: judged as they come, and handed to its log and loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from walkback.errors import InputError, shown
from walkback.report.formats.logged import position
from walkback.training.watch import history
from walkback.training.watch.history import Fired, Judge, Lost, Printer, Row
from walkback.training.watch.ranks import together
from walkback.verdict.claim import accuracies


class WatchRows:
    """All rows so far, what they are judged to show, and the numbers that wait for the next row.

    Args:
        by: the limits, and the edition whose checks lose trust.
        log: a .jsonl file that gets every row.
        to: functions that take each row.
        live: print each row on standard error.
    """

    def __init__(self, by: Judge, log: Path | None, to: Sequence[Callable[[Row], object]], live: bool) -> None:
        self.by = by
        self.rows: list[Row] = []
        self.judged: list[tuple[tuple[Fired, ...], Lost | None]] = []  # of each row
        self.numbers: dict[str, Any] = {}  # the user's own, for the next row
        self.shapes: list[list[int]] = []  # of a state at each site
        self._sinks = (*(() if log is None else (partial(history.append, log),)), *to)
        self._live = (Printer(),) if live else ()
        self._resumed = False

    def go_on(self, rows: Sequence[Row], whence: Path | str | None) -> None:
        """Begin with rows that were measured before; the first that is measured may stand before the last of them."""
        if rows:
            history.same_network(rows[-1], self.shapes, whence)
        self.rows, self.judged = [], []
        for row in rows:
            self._add(row)
        self._resumed = bool(rows)

    def note(self, numbers: Mapping[str, Any]) -> None:
        """Take numbers of the user's own for the next row."""
        for name, value in numbers.items():
            number = value.item() if hasattr(value, "item") else value
            if name in history.RESERVED or isinstance(number, bool) or not isinstance(number, Real):
                raise InputError(
                    f"Expected numbers under names of your own, but got {name}={shown(value)}. Not among the names: "
                    f"{', '.join(history.RESERVED)}."
                )
            self.numbers[name] = accuracies(name, number)[0] if name in ("acc", "test_acc") else float(number)

    def take(self, row: Row) -> None:
        """Put a row that was just measured behind the others, judge it, and hand it on."""
        self.numbers = {}
        if self._resumed:  # measured again from an earlier point: what came after it does not stand
            before = sum(position(old) < position(row) for old in self.rows)
            self.rows, self.judged, self._resumed = self.rows[:before], self.judged[:before], False
        self._add(row)
        together(partial(self._write, row, *self._live))

    def amend(self, since: int) -> Row | None:
        """Put the numbers that wait into the last row, if that was measured after so many steps."""
        late, self.numbers = self.numbers, {}
        if not self.rows or (since and self.rows[-1]["step"] <= since):
            return None
        row = together(partial(self._amended, late))
        self.rows[-1] = row or self.rows[-1]
        return row

    @property
    def lost(self) -> Lost | None:
        """The first time the edition walked the claim back."""
        return next((lost for _, lost in self.judged if lost is not None), None)

    @property
    def fired(self) -> tuple[Fired, ...]:
        """The first time of every check that flagged, the earliest first."""
        flags = [flag for flags, _ in self.judged for flag in flags]
        first = {flag.check: flag for flag in reversed(flags)}
        return tuple(flag for flag in flags if first[flag.check] is flag)

    def _add(self, row: Row) -> None:
        self.judged.append(history.judged(row, self.by))
        self.rows.append(row)

    def _amended(self, late: Mapping[str, Any]) -> Row | None:
        """Return the last row with these numbers, written anew unless it has them; None without any."""
        row = {**self.rows[-1], **late}
        if row != self.rows[-1]:
            self._write(row)
        return row if late else None

    def _write(self, row: Row, *live: Callable[[Row], object]) -> None:
        for sink in (*self._sinks, *live):
            sink(row)
