"""The measurements of `diagnose` while any loop trains: what is lost, when, and in which layer.

A watch reads; it never takes part. It makes its own forward and backward pass, in eval mode, on its own batches and on
the plain loss, so gradient accumulation, loss scaling, clipping and averaging of weights neither disturb it nor are
disturbed: the model, its `.grad` and every random state are as they were.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch import Tensor, nn

from walkback.api import NULLS, PRECISION, SHIFTED, measure
from walkback.errors import FormatError, InputError, WalkbackError, shown
from walkback.measures.accumulate import Measurements
from walkback.network.anatomy import Anatomy
from walkback.network.loss import Loss
from walkback.network.values import buffers_of, modules_of, parameters_of
from walkback.progress import quietly, say
from walkback.report.formats.logged import (
    BLANK,
    WATCH_SCHEMA,
    culprit,
    jsonl_rows,
    judge,
    measurements,
    plain,
    position,
    standing,
)
from walkback.report.report import Report
from walkback.tracing.session import Credit
from walkback.tracing.untouched import undrawn
from walkback.verdict.checks import DiagnosticThresholds, accuracies
from walkback.verdict.editions import Claim, decide

T = TypeVar("T")
Row = dict[str, Any]

DEFAULT_OVERHEAD = 0.02
_LISTS = ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps", "zero_credit", *SHIFTED, *NULLS, *PRECISION)
_VALUES = ("growth", "growth_total", "stability", "stability_distinct", "gamma", "gamma_concentration", "deep_cosine")
_CONDITIONS = ("mode", "device", "dtype", "gradient_dtype", "autocast", "batches", "batch_size", "samples",
               "probe_hash", "state_shape", "state_shapes", "pool", "g_norm_batch_size", "loss", "probe_accuracy",
               "reference", "chunk")  # fmt: skip
# Names of a row that numbers of the user's own can't have.
_OURS = ("schema", "epoch", "step", "total_epochs", "total_steps", "per_layer", "values", "aggregates", "flagged",
         "walked_back", "conditions", "reasons", "advisories", "notes", "nonfinite", "altered",
         "doubted", "seconds", "elapsed", "overhead", *_LISTS, *_VALUES)  # fmt: skip


@dataclass(frozen=True)
class Fired:
    """The first time a check flagged: which, after how many epochs and steps, and the layer it points at.

    >>> print(Fired("D1", 2, 300, 3, 71.25, "> 50"))
    D1 fired at epoch 2, step 300, layer 3: 71.2 > 50
    """

    check: str
    epoch: int
    step: int
    layer: int | None
    value: float | None
    flags_when: str
    reason: str = ""

    def __str__(self) -> str:
        where = "" if self.layer is None else f", layer {self.layer}"
        what = self.reason or ("" if self.value is None else f"{self.value:.3g} {self.flags_when}")
        return f"{self.check} fired at {_place(self.epoch, self.step)}{where}: {what}"


@dataclass(frozen=True)
class Lost:
    """The first time the edition walked the claim back: by which checks, after how many epochs and steps.

    >>> print(Lost(("D1", "D2"), 2, 300))
    trust lost at epoch 2, step 300: D1, D2
    """

    checks: tuple[str, ...]
    epoch: int
    step: int

    def __str__(self) -> str:
        return f"trust lost at {_place(self.epoch, self.step)}: {', '.join(self.checks)}"


def _place(epoch: int, step: int) -> str:
    return ", ".join(f"{name} {n}" for name, n in (("epoch", epoch), ("step", step)) if n) or "the start"


class History(Sequence[Row]):
    """What a watch has measured, one dict per measurement; `str()` is a table.

    >>> print(History([{"epoch": 1, "step": 0, "per_layer": {"h_norm": [9.0, 9.5]}, "values": {"growth": 1.06}}]))
      epoch    ‖h_0‖    ‖h_L‖    growth
          1        9      9.5      1.06
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = list(rows)

    def __getitem__(self, index: Any) -> Any:
        return History(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        if not self._rows:
            return "nothing measured yet"
        heads = [head for head in _heads(self._rows[-1]) if any(_cell(row, head) for row in self._rows)]
        cells = [[_cell(row, head) for head in heads] for row in self._rows]
        return tabulate(cells, heads, tablefmt="plain", disable_numparse=True, colalign=["right"] * len(heads))

    def __repr__(self) -> str:
        return f"History of {len(self._rows)} measurements\n{self}"


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

    Call `step()` after every optimiser step and `epoch()` after every epoch (one of the two is enough), on every rank.
    One batch is measured at once, so that a network that can't be read is an error before training, not after an epoch.

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
        with undrawn(model):
            self._unit, self._n = settled(every, max_overhead, edition, thresholds, log)
        self.max_overhead = DEFAULT_OVERHEAD if max_overhead is None and self._unit == "auto" else max_overhead
        self.model, self.edition, self.thresholds = model, edition, thresholds or DiagnosticThresholds()
        self._how: dict[str, Any] = {
            "credit": credit, "anatomy": anatomy, "loss": loss, "chunk": chunk, "reference": reference,
        }  # fmt: skip
        if edition == "intrinsic":
            self._how["probes"] = ("intrinsic",)
        self._log, self._live, self._to = None if log is None else Path(log), live, tuple(to)
        self._totals = {"total_epochs": total_epochs, "total_steps": total_steps}
        self._clock, self._start = clock, clock()
        self.steps = self.epochs = 0
        self._least = {"steps": 0, "epochs": 0}  # said by the caller: counts don't go back behind it
        self._calls, self._next = 0, 1  # of step(); with "auto" the budget is looked at again at call `_next`
        self._numbers: dict[str, float | None] = {}
        self._everyone = _sharded(model)
        self._rows: list[Row] = []
        self._flags: list[tuple[Fired, ...]] = []
        self._losses: list[Lost | None] = []
        self._said: set[str] = set()  # advisories, and how many rows, that were printed
        self._shown = 0
        with undrawn(model):  # loaders, and loggers later on, draw from the random state
            # An iterator would be used up by the first measurement.
            self._batches = list(eval_batches) if isinstance(eval_batches, Iterator) else eval_batches
            before, keep = ([], None) if self._log is None else _together(lambda: reopen(Path(log or "")))
            self._spent, one, shapes = _together(self._begin, self._everyone)
            if before:
                same_network(before[-1], shapes, self._log)
            if keep is not None:
                _together(lambda: repair(Path(log or ""), keep))
            for row in before:
                self._add(row)
        if before:
            self.epochs, self.steps = position(before[-1])
        self._cost = one * _length(self._batches)  # of a measurement: guessed from one batch, then known
        self._last = clock()  # the end of the last measurement
        self._resumed = bool(before)

    # -- while training ----------------------------------------------------------------------------------------

    def step(self, number: int | None = None, **numbers: float) -> Row | None:
        """Say that an optimiser step was taken. Measures if it is time for it, and then returns the row.

        Args:
            number: how many steps were taken in all; by default one more than before. Training that goes on from a
                checkpoint older than the last row of its log must say it.
            numbers: put into the next row: `acc` (a fraction), losses, learning rates.
        """
        # Trainers with several optimisers take more than one step at a time, so multiples of n may be jumped over.
        before, self.steps = self._counted("steps", number)
        self._calls += 1
        passed = self._unit == "step" and self.steps // self._n > before // self._n
        return self._turn(passed or (self._unit == "auto" and self._calls >= self._next), numbers)

    def epoch(self, number: int | None = None, **numbers: float) -> Row | None:
        """Say that an epoch has ended. Measures if it is time for it, and then returns the row.

        Args:
            number: how many epochs were done in all; by default one more than before.
            numbers: as in `step`.
        """
        before, self.epochs = self._counted("epochs", number)
        due = self._unit == "auto" or (self._unit == "epoch" and self.epochs // self._n > before // self._n)
        return self._turn(due, numbers)

    def measure(self, **numbers: float) -> Row:
        """Measure now, whatever the cadence and its budget say."""
        self._note(numbers)
        return self._measure_now()

    def finish(self, **numbers: float) -> Row | None:
        """Say that training has ended. Measures, and returns the row, unless the last row already stands there.

        Then the numbers, if any, go into that row.
        """
        epoch, step = position(self._rows[-1]) if self._rows else (None, None)
        # An epoch that ends without a step moves nothing; a row without steps stands where none were taken.
        if step == self.steps and (step or epoch == self.epochs):
            return self.amend(0, **numbers) if numbers else None
        return self.measure(**numbers)

    def amend(self, since: int = 0, **numbers: float) -> Row | None:
        """Put numbers that were known too late, and those that wait for the next row, into the last row.

        Args:
            since: only if that row was measured after so many steps; else the numbers go nowhere, and None is returned.
            numbers: as in `step`.

        The row goes to the log and to the loggers again; read back, the log has it once.
        """
        self._note(numbers)
        late, self._numbers = self._numbers, {}
        if not late or not self._rows or (since and self._rows[-1]["step"] <= since):
            return None
        if late.items() <= self._rows[-1].items():
            return self._rows[-1]  # it has them already
        row = self._rows[-1] = {**self._rows[-1], **late}
        with undrawn(self.model):
            _together(lambda: self._write(row))
        return row

    @property
    def lost(self) -> Lost | None:
        """When the edition first walked the claim back on what can be told while training; None as long as it has not.

        A check that fired is not yet trust that was lost: by "three-check", growth (D1) alone never loses it. Depth
        utility (D3, d) is left out: an early accuracy against a control's last one says nothing.
        """
        return next((lost for lost in self._losses if lost is not None), None)

    @property
    def should_stop(self) -> bool:
        """Whether trust was lost at some point of the history; what follows does not bring it back."""
        return self.lost is not None

    @property
    def fired(self) -> tuple[Fired, ...]:
        """The first time of every check that flagged, the earliest first, whether or not trust was `lost` by it."""
        first: dict[str, Fired] = {}
        for flags in self._flags:
            for flag in flags:
                first.setdefault(flag.check, flag)
        return tuple(first.values())

    @property
    def history(self) -> History:
        """All rows, in the shape `judge` reads; `str()` of it is a table."""
        return History(self._rows)

    @property
    def overhead(self) -> float:
        """The share of wall time that measuring has taken since the watch was made."""
        elapsed = self._clock() - self._start
        return self._spent / elapsed if elapsed > 0 else 0.0

    def report(self, **claim: Any) -> Report:
        """What `judge` says of the history: the last measurement, and when each check first fired.

        Args:
            claim: arguments of `judge`: headline_acc, frozen_baseline_acc, bp_acc, method_name, notes.
        """
        if not self._rows:
            raise InputError("Expected at least one measurement, but nothing was measured yet. Call measure() first.")
        return judge(self._rows, self.edition, self.thresholds, **claim)

    def __str__(self) -> str:
        fired = [str(f) for f in self.fired] or ["no check has fired"]
        lost = [str(self.lost)] if self.lost else ["trust is not lost"] if self.fired else []
        notes = [f"note: {text}" for text in dict.fromkeys(self._rows[-1]["advisories"] if self._rows else ())]
        return "\n".join([str(self.history), *fired, *lost, *notes, f"measuring took {self.overhead:.1%} of the time"])

    # -- inside ------------------------------------------------------------------------------------------------

    def _turn(self, due: bool, numbers: Mapping[str, float]) -> Row | None:
        self._note(numbers)
        if due and self.max_overhead is not None:
            due, self._next = _together(self._afford)
        return self._measure_now() if due else None

    def _counted(self, name: str, number: int | None) -> tuple[int, int]:
        """(how many there were before, how many there are now)."""
        before, least = getattr(self, name), self._least[name]
        if number is None:
            self._least[name] = before + 1
            return before, before + 1
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InputError(
                f"Expected the number of {name} as a whole number from {least} on, but got {shown(number)}."
            )
        self._least[name] = number
        return (before if number >= before else number - 1), number  # back: training went on from an older checkpoint

    def _note(self, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            number = value.item() if hasattr(value, "item") else value
            if name in _OURS or isinstance(number, bool) or not isinstance(number, Real):
                raise InputError(
                    f"Expected numbers under names of your own, but got {name}={shown(value)}. Not among the names: "
                    f"{', '.join(_OURS)}."
                )
            self._numbers[name] = accuracies(name, number)[0] if name in ("acc", "test_acc") else float(number)

    def _afford(self) -> tuple[bool, int]:
        """(whether a measurement fits into the budget now, the call of step() at which to look again)."""
        assert self.max_overhead is not None
        now, share = self._clock(), self.max_overhead
        elapsed = now - self._start
        # It must fit into the time that will have passed when it is done, in all and since the last one: what was
        # saved so far is not spent on many measurements in a row.
        in_all, since = (self._spent + self._cost) / share - elapsed, self._cost / share - (now - self._last)
        wait = max(in_all, since) - self._cost
        if wait <= 0:
            return True, self._calls + 1
        each = (elapsed - self._spent) / self._calls if self._calls else 0.0
        guess = math.ceil(wait / each) if each > 0 else 1
        return False, self._calls + max(1, min(guess, self._calls))  # not far ahead on the pace of the first steps

    def _measure_now(self) -> Row:
        with undrawn(self.model):  # also what loggers draw; what they keep on the network is theirs
            return self._record()

    def _record(self) -> Row:
        began = self._now()
        try:
            row = _together(self._measured, self._everyone)
        finally:
            self._spent += self._now() - began
        began = self._clock()
        self._numbers = {}
        if self._resumed and self._rows:  # measured again from an earlier point: what came after it does not stand
            kept = sum(position(old) < position(row) for old in self._rows)
            self._rows, self._flags, self._losses = self._rows[:kept], self._flags[:kept], self._losses[:kept]
        self._resumed = False
        self._cost, self._last = row["seconds"], self._clock()
        self._add(row)
        _together(lambda: self._publish(row))
        self._spent += self._clock() - began
        return row

    def _measured(self) -> Row:
        began = self._now()
        with quietly():
            m = measure(self.model, self._moved(), **self._how)
        now = self._now()
        verdict = decide(m, Claim(), self.thresholds, self.edition)
        checks = [f for f in verdict.findings[:-1] if f.title != "direction stability"]
        elapsed = now - self._start
        said = [note for note in (*m.nonfinite, m.altered, m.doubted, *m.notes) if note is not None]
        return plain(
            {
                "schema": WATCH_SCHEMA,
                "epoch": self.epochs,
                "step": self.steps,
                **{name: total for name, total in self._totals.items() if total is not None},
                **self._numbers,
                "flagged": {f.check: f.flagged for f in checks},
                "walked_back": bool(verdict.failed),
                "per_layer": {name: getattr(m, name) or None for name in _LISTS},
                "values": {name: getattr(m, name) for name in _VALUES},
                "aggregates": m.aggregates,
                "reasons": {k: v for k, v in m.reasons.items() if not getattr(m, k, None)},
                "advisories": [note.text for note in said],
                "notes": [note.to_dict() for note in m.notes],
                "nonfinite": [{**note.values, "site": note.site} for note in m.nonfinite],
                **{
                    k: None if n is None else dict(n.values)
                    for k, n in (("altered", m.altered), ("doubted", m.doubted))
                },
                "conditions": {name: m.conditions[name] for name in _CONDITIONS},
                "seconds": now - began,
                "elapsed": elapsed,
                "overhead": (self._spent + now - began) / elapsed if elapsed > 0 else 0.0,
            }
        )

    def _add(self, row: Row) -> None:
        m = measurements(row)
        verdict = decide(m, Claim(), self.thresholds, self.edition)
        self._rows.append(row)
        self._losses.append(Lost(verdict.failed, row["epoch"], row["step"]) if verdict.failed else None)
        self._flags.append(
            tuple(
                Fired(f.check, row["epoch"], row["step"], culprit(f, m), f.value, f.flags_when, f.reason)
                for f in verdict.findings[:-1]
                if f.flagged and f.title != "direction stability"
            )
        )

    def _publish(self, row: Row) -> None:
        self._write(row)
        if self._live:
            heads = _heads(row)
            widths = {head: max(len(head), 9) for head in heads}
            self._shown += 1
            if self._shown % 20 == 1:
                say("  ".join(head.rjust(widths[head]) for head in heads))
            line = "  ".join(_cell(row, head).rjust(widths[head]) for head in heads)
            say(line, alarm=any(row["flagged"].values()))
            for text in row["advisories"]:
                if text not in self._said:
                    say(f"note: {text}")
                    self._said.add(text)

    def _write(self, row: Row) -> None:
        if self._log is not None:
            append(self._log, row)
        for log in self._to:
            log(row)

    def _moved(self) -> Iterator[Any]:
        """The batches, on the model's device."""
        for batch in self._batches:
            yield _on(batch, self._device)

    @property
    def _device(self) -> torch.device:
        """Where the model is now; it may have been moved since the watch was made."""
        return next((t.device for t in (*parameters_of(self.model), *buffers_of(self.model))), torch.device("cpu"))

    def _now(self) -> float:
        """The time when everything that was asked of the device is done."""
        device = self._device.type
        if device != "cpu":
            getattr(torch, device).synchronize()
        return self._clock()

    def _begin(self) -> tuple[float, float, list[list[int]]]:
        """(seconds spent on measuring one batch, seconds that it takes, the shape of a state at each site)."""
        times, shapes = [self._now()], []
        for _ in range(1 if self.max_overhead is None else 2):  # the first time loads code: it says little of the cost
            first = next(iter(self._moved()), None)
            with quietly():
                m = measure(self.model, [] if first is None else [first], **self._how)
            shapes = m.conditions["state_shapes"]
            times.append(self._now())
        return times[-1] - times[0], times[-1] - times[-2], shapes


# -- cadence ---------------------------------------------------------------------------------------------------


def settled(
    every: str | int,
    max_overhead: float | None = None,
    edition: str = "three-check",
    thresholds: DiagnosticThresholds | None = None,
    log: str | Path | None = None,
) -> tuple[str, int]:
    """The cadence, after all that can be checked before there is a network; a mistake should not cost an epoch."""
    unit, n = cadence(every)
    if max_overhead is not None and (not isinstance(max_overhead, Real) or not 0 < max_overhead <= 1):
        raise InputError(f"Expected max_overhead as a share of wall time, over 0 to 1, but got {shown(max_overhead)}.")
    decide(Measurements(), Claim(), thresholds or DiagnosticThresholds(), edition)
    if log is not None and Path(log).suffix.lower() != ".jsonl":
        raise InputError(f"Expected log to end in .jsonl, one row per line, but got {shown(str(log))}.")
    return unit, n


def check_options(every: str | int, options: Mapping[str, Any]) -> None:
    """Refuse what `Watch` would refuse, before a trainer has made one."""
    known = [p.name for p in signature(Watch).parameters.values() if p.kind is p.KEYWORD_ONLY]
    wrong = [name for name in options if name not in known]
    if wrong:
        raise InputError(f"Expected options to be keywords of Watch, {', '.join(known)}, but got {', '.join(wrong)}.")
    early = ("max_overhead", "edition", "thresholds", "log")
    settled(every, **{name: value for name, value in options.items() if name in early})


def cadence(every: str | int) -> tuple[str, int]:
    """("epoch" or "step", how many) or ("auto", 1).

    >>> cadence("epoch"), cadence("5 epochs"), cadence(100), cadence("auto")
    (('epoch', 1), ('epoch', 5), ('step', 100), ('auto', 1))
    """
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return "step", every
    if every == "auto":
        return "auto", 1
    said = re.fullmatch(r"(?:([1-9]\d*) )?(epoch|step)s?", every) if isinstance(every, str) else None
    if said is None:
        known = '"epoch", "5 epochs", a number of steps, or "auto"'
        raise InputError(f"Expected every to be {known}, but got {shown(every)}.")
    return said[2], int(said[1] or 1)


def _length(batches: Iterable[Any]) -> int:
    try:
        return max(1, len(batches))  # type: ignore[arg-type]
    except TypeError:
        return 8  # the least that is asked for


# -- many processes ---------------------------------------------------------------------------------------------


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _sharded(model: nn.Module) -> bool:
    """Whether every rank must take part in a forward pass, because each holds a part of the weights."""
    wrapped = any(type(m).__name__ == "FullyShardedDataParallel" for m in modules_of(model))
    return wrapped or any(type(p.data).__name__ == "DTensor" for p in parameters_of(model))


def _together(work: Callable[[], T], everyone: bool = False) -> T:
    """Do `work` on rank 0 (`everyone`: on all), and give its result, or its error, to every rank."""
    if not _distributed():
        return work()
    first, box, mine = dist.get_rank() == 0, [None, None], None
    if first or everyone:
        try:
            box = [work(), None]
        except Exception as error:
            mine, box = error, [None, f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(box, src=0)
    result, error = box
    if mine is not None:
        raise mine
    if error is not None:
        raise WalkbackError(f"Expected rank 0 to measure, but there: {error}")
    return result  # type: ignore[return-value]


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {k: _on(v, device) for k, v in value.items()}
    return type(value)(_on(v, device) for v in value) if type(value) in (tuple, list) else value


# -- on disk ----------------------------------------------------------------------------------------------------


_HEAD = json.dumps({"schema": WATCH_SCHEMA})[:-1].encode()  # how every row begins


def append(path: Path, row: Row) -> None:
    """Put a row at the end of a .jsonl file, on disk before this returns; if the disk is full, nothing of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            end, line = file.tell(), (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(path, end)
                raise
    except OSError as error:
        raise FormatError(f"Expected to append to {path}, but: {error}.") from None


def reopen(path: Path) -> tuple[list[Row], int | None]:
    """(the rows of a history that is there, how many bytes of it are whole if a killed run left it without an end)."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise FormatError(f"Expected {path} to be a history to go on with, but: {error}.") from None
    try:
        rows, torn = jsonl_rows(data, path)
    except FormatError as error:
        raise FormatError(f"Expected {path} to be a history to go on with, but: {error}") from None
    ours = bool(rows) or _HEAD.startswith(torn[: len(_HEAD)])
    if not ours or not all(isinstance(row, dict) and row.get("schema") == WATCH_SCHEMA for row in rows):
        raise FormatError(
            f"Expected {path} to be a history to go on with, rows of {WATCH_SCHEMA}, but it holds something else. "
            "Give log another name."
        )
    whole = data.rstrip(BLANK)
    keep = len(whole[: len(whole) - len(torn)].rstrip(BLANK)) if torn or not data.endswith(b"\n") else None
    return [dict(row) for row, _ in standing([(row, "") for row in rows])], keep


def repair(path: Path, keep: int) -> None:
    """Keep the first bytes of a history, whole rows; what a killed run left after them is cut off."""
    try:
        os.truncate(path, keep)
        if keep:
            with path.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise FormatError(f"Expected to repair the end of {path}, but: {error}.") from None
    say(f"note: {path.name} ended in half a line, as a run that was killed leaves it: it goes on after the last row")


def same_network(row: Row, shapes: Sequence[Sequence[int]], path: Path | None) -> None:
    """Refuse to go on with the history of a network with other sites, or states of another shape."""

    def known(shapes: Sequence[Sequence[int]]) -> list[list[int]]:
        return [list(shape[-1:] if len(shape) == 2 else shape) for shape in shapes]  # batches differ in their tokens

    before = row["conditions"]["state_shapes"]
    if known(before) != known(shapes):
        raise InputError(
            f"Expected {path} to be the history of this network, with states {_shapes(shapes)}, but it is that of one "
            f"with states {_shapes(before)}. Give log another name, or delete the file if it is not needed."
        )


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    kinds = " or ".join(dict.fromkeys("×".join(map(str, shape)) or "scalar" for shape in shapes))
    return f"of shape {kinds} at {len(shapes)} sites"


# -- tables and scalars -----------------------------------------------------------------------------------------

_PATHS: dict[str, tuple[str, str, int | None]] = {
    "‖h_0‖": ("per_layer", "h_norm", 0),
    "‖h_L‖": ("per_layer", "h_norm", -1),
    "growth": ("values", "growth", None),
    "‖g_L‖": ("per_layer", "g_norm", -1),
    "Γ": ("values", "gamma", None),
    "deep cos": ("values", "deep_cosine", None),
}


def _heads(row: Row) -> list[str]:
    cosines = ("Γ", "deep cos") if (row["per_layer"].get("cosine") or None) else ()
    norms = [head for head in _PATHS if head not in ("Γ", "deep cos") or head in cosines]
    own = [name for name in row if name not in _OURS]
    return [*(name for name in ("epoch", "step") if row[name]), *own, *norms, "flagged"]


def _cell(row: Row, head: str) -> str:
    if head == "flagged":
        return " ".join(check for check, flagged in row.get("flagged", {}).items() if flagged)
    if head in _PATHS:
        part, name, index = _PATHS[head]
        value = row[part].get(name)
        value = value[index] if value and index is not None else value
    else:
        value = row.get(head)
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return f"{value:+.3f}" if head in ("Γ", "deep cos") else f"{value:.4g}"


def scalars(row: Row) -> dict[str, float]:
    """A row as flat names and numbers, for loggers: walkback/acc, walkback/growth, walkback/g_norm/4, …

    >>> scalars({"per_layer": {"h_norm": [1.0, 2.0]}, "values": {"growth": 2.0}, "flagged": {"D1": False}})
    {'walkback/growth': 2.0, 'walkback/h_norm/0': 1.0, 'walkback/h_norm/1': 2.0, 'walkback/flagged/D1': 0.0}
    """
    own = {name: value for name, value in row.items() if name not in _OURS}
    found = {f"walkback/{name}": value for name, value in {**own, **row["values"]}.items()}
    for name, values in row["per_layer"].items():
        found |= {f"walkback/{name}/{site}": value for site, value in enumerate(values or ())}
    found |= {f"walkback/flagged/{check}": flagged for check, flagged in row["flagged"].items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def where(row: Row) -> int:
    """The place of a row on a logger's axis: steps done, or epochs where steps are not counted."""
    return row["step"] or row["epoch"]
