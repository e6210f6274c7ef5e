"""A watch reads; it never takes part.

It makes its own forward and backward pass, in eval mode, on its own batches and on the plain loss, so gradient
accumulation, loss scaling, clipping and averaging of weights neither disturb it nor are disturbed: the model, its
`.grad` and every random state are as they were. When it measures is `schedule`, what it keeps is `history`.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import length_hint
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from walkback.errors import InputError, shown
from walkback.measures.accumulate import Measurements
from walkback.measures.worth import Depth
from walkback.network.anatomy import Anatomy
from walkback.network.layers import Sites
from walkback.network.loss import Loss
from walkback.registry import true_or_false
from walkback.report.formats.logged import judge, position
from walkback.report.report import Report
from walkback.tracing.trace import Credit
from walkback.tracing.untouched import undrawn
from walkback.training.watch import history
from walkback.training.watch.gauge import Gauge
from walkback.training.watch.history import Fired, History, Lost, Row
from walkback.training.watch.kept import WatchRows
from walkback.training.watch.ranks import sharded, together
from walkback.training.watch.schedule import Schedule
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.editions import Claim, decide


def _counter(name: str) -> Any:
    return property(lambda self: getattr(self.schedule, name), lambda self, n: setattr(self.schedule, name, n))


class Watch:
    """Measures a network every so often while it trains, in any loop.

    Args:
        model: the network in training (inside DDP, `torch.compile` and the like it is found); for averaged weights
            (EMA), the averaged copy.
        eval_batches: (inputs, labels) pairs, at least 8 disjoint, shuffled batches of about 128; a list or a loader.
            They are moved to the model's device.
        every: "epoch", "5 epochs", a number of steps, or "auto": as often as `max_overhead` allows.
        max_overhead: the share of wall time that measuring may take; a measurement that would exceed it is left for
            later. 0.02 with "auto"; None (no limit) with a fixed cadence.
        credit: trace -> one credit per site, or a rule: cosines are measured too.
        edition: whose checks lose trust: "three-check", "four-diagnostic" or "intrinsic".
        thresholds: other limits than the published ones.
        anatomy: parts to use instead of those `Anatomy.of` finds.
        sites: "layers", names or module -> bool: the outputs of layers, as in `diagnose`.
        loss: (logits, labels) -> per-sample losses or their mean; cross-entropy by default.
        chunk: at most so many samples at once, to save memory; the numbers are the same.
        reference: where true gradients come from, as in `measure`: the network's own backward pass; "derived" from its
            forward pass alone; or a plain twin, which must have the network's weights whenever it is measured.
        log: a .jsonl file; every row is on disk before training goes on. A file that is there, of a network of the same
            shape, is continued: `steps` and `epochs` go on from its last row.
        live: print a row on standard error as soon as it is measured.
        to: functions that take each row, such as those of `walkback.integrations`.
        total_epochs: how long training is planned to be, so that `judge` can say what was left.
        total_steps: the same in steps.
        clock: seconds, for tests.

    Call `step()` after every optimiser step and `epoch()` after every epoch, on every rank; the one that `every` counts
    in is enough. One batch is measured at once: a network that can't be read is an error before training.

    >>> import walkback as wb
    >>> watch = Watch(wb.selftest.exploded(), wb.selftest.batches(8), every=10)
    >>> for _ in range(20):
    ...     _ = watch.step()
    >>> [row["step"] for row in watch.history], watch.should_stop
    ([10, 20], True)
    >>> print(watch.fired[0])
    D1 fired at step 10, layer 3: ... > 50
    >>> print(watch.lost)
    trust lost at step 10: D1, D2
    """

    def __init__(
        self,
        model: nn.Module,
        eval_batches: Iterable[Any],
        every: str | int = "epoch",
        *,
        max_overhead: float | None = None,
        credit: Credit | None = None,
        edition: str = "three-check",
        thresholds: DiagnosticThresholds | None = None,
        anatomy: Anatomy | Mapping[str, Any] | None = None,
        sites: Sites | None = None,
        loss: Loss | None = None,
        chunk: int | None = None,
        reference: nn.Module | str | None = None,
        log: str | Path | None = None,
        live: bool = False,
        to: Sequence[Callable[[Row], object]] = (),
        total_epochs: int | None = None,
        total_steps: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
        if isinstance(eval_batches, (Tensor, str, Path)) or not isinstance(eval_batches, Iterable):
            raise InputError(
                f"Expected eval_batches to be an iterable of batches, but got {type(eval_batches).__name__}. Wrap a "
                "single batch in a list: [(x, y)]."
            )
        true_or_false(live=live)
        if isinstance(to, str) or not isinstance(to, Iterable) or not all(map(callable, to := (*to,))):
            raise InputError(f"Expected to as a list of functions that take a row, but got {shown(to)}.")
        with undrawn(model):
            self.schedule = planned(every, max_overhead, edition, thresholds, log, clock())
        self.model, self.edition = model, edition
        self.thresholds = DiagnosticThresholds() if thresholds is None else thresholds
        how: dict[str, Any] = {"probes": ("intrinsic",)} if edition == "intrinsic" else {}
        how |= {"credit": credit, "anatomy": anatomy, "loss": loss, "chunk": chunk, "reference": reference}
        self._totals = {"total_epochs": total_epochs, "total_steps": total_steps}
        self._everyone = sharded(model)
        path = None if log is None else Path(log)
        self._kept = kept = WatchRows((self.thresholds, edition), path, to, live)
        with undrawn(model):  # loaders, and loggers later on, draw from the random state
            self._gauge = Gauge(model, eval_batches, {**how, "sites": sites}, clock)
            before, whole = ([], None) if path is None else together(partial(history.reopen, path))
            # The first measurement loads code, which says little of the cost.
            once = partial(self._gauge.first, 1 if self.max_overhead is None else 2)
            spent, one, kept.shapes = together(once, self._everyone)
            kept.go_on(before, path)
            if path is not None and whole is not None:
                together(partial(history.repair, path, whole))
        if before:
            self.epochs, self.steps = position(before[-1])
        schedule = self.schedule
        # The cost of a measurement is guessed from one batch at first, and then known.
        schedule.spent, schedule.cost, schedule.last = spent, one * max(1, length_hint(self._gauge.batches, 8)), clock()
        # With nobody left to call it, it is sure that what `every` waits for will not come.
        self._warn = weakref.finalize(self, schedule.warn_unheard)

    # -- while training ----------------------------------------------------------------------------------------

    def step(self, number: int | None = None, **numbers: float) -> Row | None:
        """Say that an optimiser step was taken. Measures if it is time for it, and then returns the row.

        Args:
            number: how many steps were taken in all; by default one more than before. Training that goes on from a
                checkpoint older than the last row of its log must say it.
            numbers: put into the next row: `acc` (a fraction), losses, learning rates.
        """
        return self._turn(self.schedule.step(number), numbers)

    def epoch(self, number: int | None = None, **numbers: float) -> Row | None:
        """Say that an epoch has ended, as `step` says it of a step."""
        return self._turn(self.schedule.epoch(number), numbers)

    def measure(self, **numbers: float) -> Row:
        """Measure now, whatever the cadence and its budget say."""
        self._kept.note(numbers)
        with undrawn(self.model):  # also what loggers draw; what they keep on the network is theirs
            return self._record()

    def finish(self, *, depth: Depth | None = None, **numbers: float) -> Row | None:
        """Say that training has ended. Measures, and returns the row, unless the last row already stands there.

        Then the numbers, if any, go into that row. `depth` is what `walkback.depth` returned: the row keeps it.
        """
        self._warn()
        if depth is not None:
            self._kept.numbers["depth"] = Depth.of(depth).to_dict()
        epoch, step = position(self._kept.rows[-1]) if self._kept.rows else (None, None)
        # An epoch that ends without a step moves nothing; a row without steps stands where none were taken.
        if step == self.steps and (step or epoch == self.epochs):
            return self.amend(0, **numbers)
        return self.measure(**numbers)

    def amend(self, since: int = 0, **numbers: float) -> Row | None:
        """Put numbers that were known too late, and those that wait for the next row, into the last row.

        Args:
            since: only if that row was measured after so many steps; else the numbers go nowhere, and None is returned.
            numbers: as in `step`.

        The row goes to the log and to the loggers again; read back, the log has it once. As in all rows, the numbers
        are those that rank 0 was told.
        """
        self._kept.note(numbers)
        with undrawn(self.model):
            return self._kept.amend(since)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of the training should keep: rows, counts and what waits for the next row.

        It holds what JSON can hold. A new watch that loads it goes on as if training had never been interrupted.
        """
        state = self.schedule.state_dict(self._gauge.clock())
        return {"rows": list(self._kept.rows), "numbers": dict(self._kept.numbers), "schedule": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict`; rows that a log has of the time after it are measured again.

        >>> import walkback as wb
        >>> first, second = (Watch(wb.selftest.healthy(), wb.selftest.batches(2), every=3) for _ in range(2))
        >>> _ = [first.step() for _ in range(4)]
        >>> second.load_state_dict(first.state_dict())
        >>> [row["step"] for row in map(lambda _: second.step(), range(2)) if row], [r["step"] for r in second.history]
        ([6], [3, 6])
        """
        if not isinstance(state, Mapping) or not {"rows", "numbers", "schedule"} <= set(state):
            raise InputError(f"Expected a state that Watch.state_dict() returned, but got {shown(state)}.")
        self._kept.go_on(state["rows"], "the state")
        self._kept.numbers = dict(state["numbers"])
        self.schedule.load_state_dict(state["schedule"], self._gauge.clock())

    # -- what it says ------------------------------------------------------------------------------------------

    steps, epochs = _counter("steps"), _counter("epochs")  # how many were taken or done

    @property
    def max_overhead(self) -> float | None:
        return self.schedule.share

    @property
    def lost(self) -> Lost | None:
        """When the edition first walked the claim back on what can be told while training; None as long as it has not.

        A check that fired is not yet trust that was lost: by "three-check", growth (D1) alone never loses it. Depth
        utility (D3, d) is left out: an early accuracy against a control's last one says nothing.
        """
        return self._kept.lost

    @property
    def should_stop(self) -> bool:
        """Whether trust was lost at some point of the history; what follows does not bring it back."""
        return self.lost is not None

    @property
    def fired(self) -> tuple[Fired, ...]:
        """The first time of every check that flagged, the earliest first, whether or not trust was `lost` by it."""
        return self._kept.fired

    @property
    def history(self) -> History:
        """All rows, in the shape `judge` reads; `str()` of it is a table."""
        return History(self._kept.rows)

    @property
    def overhead(self) -> float:
        """The share of wall time that measuring has taken since the watch was made."""
        return self.schedule.overhead(self._gauge.clock())

    def report(self, **claim: Any) -> Report:
        """Return what `judge` says of the history: the last measurement, and when each check first fired.

        Args:
            claim: arguments of `judge`: headline_acc, frozen_baseline_acc, bp_acc, method_name, notes.
        """
        if not self._kept.rows:
            why = (unheard := self.schedule.unheard()) and f" ({unheard})"
            raise InputError(
                f"Expected at least one measurement, but nothing was measured yet{why}. Call measure() first."
            )
        return judge(self._kept.rows, self.edition, self.thresholds, **claim)

    def __str__(self) -> str:
        fired = [*map(str, self.fired)] or ["no check has fired"]
        lost = [str(self.lost)] if self.lost else ["trust is not lost"] if self.fired else []
        notes = [
            *(self._kept.rows[-1]["advisories"] if self._kept.rows else ()),
            *filter(None, [self.schedule.unheard()]),
        ]
        lines = [*fired, *lost, *(f"note: {text}" for text in dict.fromkeys(notes))]
        return "\n".join([str(self.history), *lines, f"measuring took {self.overhead:.1%} of the time"])

    # -- inside ------------------------------------------------------------------------------------------------

    def _turn(self, due: bool, numbers: Mapping[str, float]) -> Row | None:
        self._kept.note(numbers)
        if due and self.max_overhead is not None:
            due, self.schedule.look = together(lambda: self.schedule.affordable(self._gauge.clock()))
        return self.measure() if due else None

    def _record(self) -> Row:
        schedule, gauge = self.schedule, self._gauge
        began = gauge.now()
        try:
            row = together(self._measured, self._everyone)
        finally:
            schedule.spent += gauge.now() - began
        began = gauge.clock()
        schedule.cost, schedule.last = row["seconds"], gauge.clock()
        self._kept.take(row)
        schedule.spent += gauge.clock() - began
        return row

    def _measured(self) -> Row:
        schedule, gauge = self.schedule, self._gauge
        began = gauge.now()
        m = gauge.measured()
        now = gauge.now()
        totals = {name: total for name, total in self._totals.items() if total is not None}
        begin = {"epoch": self.epochs, "step": self.steps, **totals, **self._kept.numbers}
        end = {"seconds": now - began, "elapsed": now - schedule.start, "overhead": schedule.overhead(now, now - began)}
        return history.row_of(m, self._kept.by, begin, end)


def planned(
    every: str | int,
    max_overhead: float | None = None,
    edition: str = "three-check",
    thresholds: DiagnosticThresholds | None = None,
    log: str | Path | None = None,
    now: float = 0.0,
) -> Schedule:
    """Return the schedule, after all that can be checked before there is a network; a mistake costs no epoch."""
    schedule = Schedule.of(every, max_overhead, now)
    decide(Measurements(), Claim(), DiagnosticThresholds() if thresholds is None else thresholds, edition)
    if log is not None and not (isinstance(log, str | PathLike) and Path(log).suffix.lower() == ".jsonl"):
        got = shown(str(log) if isinstance(log, PathLike) else log)
        raise InputError(f"Expected log to end in .jsonl, one row per line, but got {got}.")
    return schedule
