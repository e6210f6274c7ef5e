"""Train a whole plan: what is finished stays, what was begun goes on, what fails does not stop the rest."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walkback import data
from walkback.audit import executors, store
from walkback.audit.cost import kind
from walkback.audit.executors import Event, Job, clipped, reason
from walkback.audit.plans import Plan, counted, names
from walkback.audit.plans import plan as find_plan
from walkback.errors import InputError, WalkbackError, visible
from walkback.progress import stopping_quietly
from walkback.training.setup import build, usable
from walkback.training.spec import RunSpec

MOST_THREADS = 1024  # far more end in a segmentation fault inside of OpenMP


@dataclass(frozen=True)
class Failure:
    """A run that could not be trained: why, and where its log is; `tried` is False where its folder is damaged."""

    spec: RunSpec
    detail: str
    log: Path
    tried: bool = True


@dataclass(frozen=True)
class Outcome:
    """What an audit leaves: the runs of the plan that are finished, and those that failed.

    `before` of the finished ones were there already; `without_weights` have only their record.
    """

    plan: Plan
    store: Path
    finished: tuple[RunSpec, ...]
    failed: tuple[Failure, ...]
    before: int
    without_weights: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": self.plan.name,
            "out": str(self.store),
            "runs": len(self.plan.specs),
            "models": self.plan.models,
            "settings": self.plan.settings,
            "before": self.before,
            "without_weights": self.without_weights,
            "finished": [spec.name for spec in self.finished],
            "failed": [{"name": f.spec.name, "detail": f.detail, "log": str(f.log)} for f in self.failed],
        }

    def __str__(self) -> str:
        lines = [
            str(self.plan),
            f"{len(self.finished)} of {counted(len(self.plan.specs), 'run')} finished in {self.store} "
            f"({self.before} before)",
        ]
        if self.without_weights:
            lines.append(
                f"{self.without_weights} of them have no weights that can be read, only their record: evidence reads "
                "it, diagnose can't measure again, walkback fsck says whether they are damaged. To have weights again, "
                "move the folder away and run this command"
            )
        for failure in self.failed:
            lines += ["", f"failed: {failure.spec.name}", *(f"  {line}" for line in failure.detail.splitlines())]
        if any(failure.tried for failure in self.failed):
            lines += ["", "The same command tries what failed again."]
        if self.plan.name in names() and self.finished:
            table = f"walkback evidence decoded --from {shlex.quote(str(self.store))}"
            lines += ["", f"The published figures beside these runs: {table}"]
        return "\n".join(lines)


@stopping_quietly()
def audit(
    plan: Plan | str | Path,
    out: str | Path = "runs",
    executor: str = "local",
    workers: int | None = None,
    *,
    root: str | Path | None = None,
    retries: int = 1,
    threads: int = 1,
    device: str = "cpu",
    quiet: bool = False,
    depth: int | None = None,
    **options: Any,
) -> Outcome:
    """Train what is missing of a plan in the store `out`.

    Args:
        plan: a Plan, the name of one, or a .toml file.
        out: the store; several audits may share it.
        executor: local, ray or slurm.
        workers: how many runs at a time; None for as many as the executor has room for.
        root: where the data sets are.
        retries: how often a run whose worker died is tried again.
        threads: of each worker.
        device: of each worker.
        quiet: no table, no lines.
        depth: also measure what the blocks of each run trained now are worth, on at most so many samples of a split.
        options: of the executor, such as `address` of a Ray cluster.

    >>> import tempfile, walkback as wb
    >>> spec = wb.RunSpec(rule="dfa", data="teacher", net_options={"width": 8, "depth": 2}, epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     done = audit(Plan("mine", "one small run", (spec,)), store, quiet=True)
    >>> len(done.finished), done.failed, done.before
    (1, (), 0)
    """
    if workers is not None and workers < 1:
        raise InputError(f"Expected at least one worker, but got {workers}.")
    if retries < 0:
        raise InputError(f"Expected retries to be 0 or more, but got {retries}.")
    if depth is not None and depth < 1:
        raise InputError(f"Expected depth to be a number of samples, 1 or more, but got {depth}.")
    if not 1 <= threads <= MOST_THREADS:
        raise InputError(f"Expected 1 to {MOST_THREADS} threads for each worker, but got {threads}.")
    plan = plan if isinstance(plan, Plan) else find_plan(plan)
    run, out = executors.executor(executor), Path(out)
    states = {spec: store.state(out, spec) for spec in plan.specs}
    todo = ordered(plan.specs, states)
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    console.print(visible(f"{plan}; {len(todo)} to train"), markup=False)
    if todo:
        if executor == "local":  # the workers of the others may have what this machine has not
            usable(device)
        check(todo, root)
        store.check_writable(out)
    board = _Board(out, {spec: _Line(spec, _STATUS[state.kind], state.detail) for spec, state in states.items()})
    where = None if root is None else str(Path(root).absolute())
    jobs = [Job(spec, str(out.absolute()), where, threads, device, depth) for spec in todo]
    try:
        events = run(jobs, workers, retries, **options)
    except TypeError as error:  # it is a generator: nothing has happened yet but the reading of its arguments
        raise InputError(f"Expected options that the executor {executor} knows, but: {error}.") from None
    with (
        sigterm_interrupts(),
        _shown(board, console) as show,
        closing(events),  # which stops the workers
    ):
        for event in events:
            if event is not None:
                board.take(event)
            show(event)
    finished = tuple(spec for spec, line in board.lines.items() if line.status == "finished")
    failed = tuple(
        Failure(spec, line.detail, out / spec.name / "log.txt", states[spec].kind != "damaged")
        for spec, line in board.lines.items()
        if line.status == "failed"
    )
    before = sum(state.kind == "finished" for state in states.values())
    return Outcome(plan, out, finished, failed, before, sum(not state.weights for state in states.values()))


_STATUS = {"finished": "finished", "begun": "waiting", "new": "waiting", "damaged": "failed"}


def ordered(specs: Sequence[RunSpec], states: Mapping[RunSpec, store.State]) -> list[RunSpec]:
    """Return what is to be trained: first what was begun, then seed by seed: a stopped audit has whole tables."""
    seeds = list(dict.fromkeys(spec.seed for spec in specs))
    todo = [spec for spec in specs if states[spec].kind in ("begun", "new")]
    return sorted(todo, key=lambda spec: (states[spec].kind == "new", seeds.index(spec.seed)))


def check(specs: Sequence[RunSpec], root: str | Path | None = None) -> None:
    """Load every data set and build every network and rule once: what can't be trained is said before anything is."""
    for name in dict.fromkeys(spec.data for spec in specs):
        loaded = data.load(name, data.root_of(name, root))
        apart = {"seed", "epochs", "optimiser"}  # what decides nothing about whether it can be built
        kinds = {str(s.model_dump(exclude=apart)): s for s in specs if s.data == name}
        for spec in kinds.values():
            try:
                build(spec, loaded)
            except (WalkbackError, RuntimeError, MemoryError) as error:  # torch has no type of its own for no memory
                raise InputError(f"{spec.name}: {reason(error)}") from error


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM stop a command as Ctrl-C does: what it has started first, then a word on how to go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- what is shown -------------------------------------------------------------------------------------------


@dataclass
class _Line:
    """One run of the table."""

    spec: RunSpec
    status: str  # waiting, running, finished, failed
    detail: str = ""
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return 0 if self.status in ("finished", "failed") else self.spec.epochs - (self.seen.get("epoch") or 0)


@dataclass
class _Board:
    """All runs and how far they are."""

    store: Path
    lines: dict[RunSpec, _Line]
    paces: dict[str, float] = field(default_factory=dict)
    at_a_time: int = 1  # most runs that were seen to go on together

    def __post_init__(self) -> None:
        for line in self.lines.values():
            self._look(line)

    def _look(self, line: _Line) -> None:
        line.seen = store.progress(self.store, line.spec) or line.seen
        if "seconds_per_epoch" in line.seen:
            self.paces[kind(line.spec)] = line.seen["seconds_per_epoch"]

    def look(self) -> None:
        """Read how far the running ones are."""
        for line in self.lines.values():
            if line.status == "running":
                self._look(line)

    def take(self, event: Event) -> None:
        line = self.lines[event.spec]
        line.status = {"started": "running", "retried": "waiting"}.get(event.kind, event.kind)
        line.detail = event.detail
        self.at_a_time = max(self.at_a_time, self.count("running"))
        self._look(line)

    def count(self, status: str) -> int:
        return sum(line.status == status for line in self.lines.values())

    def seconds_left(self) -> float | None:
        """Return how long the epochs to go take at the pace of their kind, or the mean one, over the runs at a time."""
        if not self.paces:
            return None
        usual = sum(self.paces.values()) / len(self.paces)
        work = sum(line.left * self.paces.get(kind(line.spec), usual) for line in self.lines.values())
        return work / max(1, min(self.at_a_time, sum(line.left > 0 for line in self.lines.values())))

    def summary(self) -> str:
        left = self.seconds_left()
        counts = [f"{self.count(status)} {status}" for status in ("finished", "running", "waiting", "failed")]
        return ", ".join(counts) + ("" if left is None else f"; about {duration(left)} left")


def duration(seconds: float) -> str:
    """Return seconds as a person says them.

    >>> duration(50), duration(1800), duration(36000)
    ('50 s', '30 min', '10.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def labels(specs: Iterable[RunSpec]) -> dict[RunSpec, str]:
    """Return runs in few words: the rule, and what they do not all share, what differs most often first."""
    parts = {spec: _parts(spec) for spec in specs}
    shared = set.intersection(*(set(words) for words in parts.values())) if len(parts) > 1 else set()
    own = {spec: [part for part in words if part not in shared] for spec, words in parts.items()}
    return {spec: " ".join([_short(spec.rule), *words]) for spec, words in own.items()}


def _parts(spec: RunSpec) -> list[str]:
    o = spec.optimiser.model_dump(exclude_defaults=True)
    options = [f"{k}={v}" for given in (spec.net_options, spec.rule_options, o) for k, v in given.items()]
    parts = [
        "frozen" if spec.scope == "frozen" else "",
        f"s{spec.seed}",
        f"λ{spec.penalty:g}" if spec.penalty else "",
        *spec.conventions,
        _short(spec.net),
        *options,
        _short(spec.data),
        "augmented" if spec.augment else "",
        f"{spec.epochs} epochs",
    ]
    return list(filter(None, parts))


def _short(name: str) -> str:
    """Return `module:function` without its module, and not too long."""
    return clipped(name.rpartition(":")[2], 16)


@contextmanager
def _shown(board: _Board, console: Any) -> Iterator[Any]:
    """Return a function that shows an event: a live table in a terminal, lines elsewhere, both on standard error."""
    from rich.live import Live

    try:
        if console.is_interactive:
            with Live(console=console, auto_refresh=False, vertical_overflow="crop", transient=True) as live:

                def redraw(_: Event | None) -> None:
                    board.look()
                    live.update(_table(board, max(3, console.size.height - 7)), refresh=True)

                redraw(None)
                yield redraw
        else:
            waits: list[str] = []  # said once

            def tell(event: Event | None) -> None:
                board.look()
                if event is not None:
                    console.print(_event_line(board, event), markup=False)
                elif not waits and board.count("waiting") and not board.count("running"):
                    waits.append(f"{counted(board.count('waiting'), 'run')} to wait for: another process trains there")
                    console.print(waits[0], markup=False)

            yield tell
    except KeyboardInterrupt:
        console.print(
            visible(
                f"{board.count('finished')} of {len(board.lines)} runs are finished in {board.store}; the same command "
                "goes on with the rest, each from its last finished epoch."
            ),
            markup=False,
        )
        raise


def _event_line(board: _Board, event: Event) -> str:
    line = board.lines[event.spec]
    numbers = "  ".join(f"{k} {v}" for k, v in zip(_HEADS, _numbers(line)) if v)
    why = f": {event.detail.splitlines()[0]}" if event.detail else ""
    return visible(f"{event.kind:8}  {event.spec.name}{why}  {numbers}  ({board.summary()})")


_HEADS = ("epoch", "acc", "‖h_L‖", "‖g_L‖")
_ORDER = ("running", "failed", "waiting", "finished")


def _numbers(line: _Line) -> list[str]:
    seen, forms = line.seen, {"acc": ".3f", "h_L": ".1e", "g_L": ".1e"}
    epoch = f"{seen['epoch']}/{line.spec.epochs}" if "epoch" in seen else ""
    return [epoch, *(format(seen[key], form) if key in seen else "" for key, form in forms.items())]


def _table(board: _Board, room: int) -> Any:
    """Return a table of the runs that fit, those that matter most first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    style = {"running": "bold", "failed": "red", "waiting": "dim", "finished": "green"}
    names = labels(board.lines)
    lines = sorted(board.lines.values(), key=lambda line: _ORDER.index(line.status))
    hidden = len(lines) - room
    caption = board.summary() + (f" (and {hidden} more runs that do not fit here)" if hidden > 0 else "")
    table = Table(caption=caption, caption_justify="left", box=SIMPLE_HEAD, expand=True)
    table.add_column("run", no_wrap=True, overflow="ellipsis", ratio=1)
    for head, width in zip(_HEADS, (9, 5, 7, 7)):
        table.add_column(head, justify="right", width=width)
    table.add_column("status", width=8)
    for line in lines[:room]:
        table.add_row(*map(Text, (names[line.spec], *_numbers(line), line.status)), style=style[line.status])
    return table
