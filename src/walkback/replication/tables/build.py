"""From settings and published figures to a table: ours, one row per setting, and what is published beside or below.

A table is a function under `@evidence_table`, which states its place, title, columns and notes, in any file of this
folder. The function fills a Draft; `walkback.replication.tables` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from walkback.audit.discoveries import with_discovery_rate
from walkback.audit.records import Record, Records
from walkback.audit.seeds import RULE
from walkback.audit.settings import RULES, Judged, Setting, judged, select, shorter
from walkback.audit.wording import commands, lacking
from walkback.replication.agree import ANY, agrees_any, answer, published
from walkback.replication.agree import RULES as AGREES_WHEN
from walkback.replication.published import Figure
from walkback.report.table import NONE, Cell, Stat, Table, spread, stat, table
from walkback.training.spec import RunSpec
from walkback.verdict.checks import DiagnosticThresholds, Finding, reference_validity
from walkback.verdict.editions import UNDECIDED

OURS = {True: "ours, augmented", False: "ours, plain"}
THREE = ("bp", "fa", "dfa")
VECTORS = ("teacher", "teacher-products", "teacher-linear")  # nothing to flip or crop
FLOOR = DiagnosticThresholds().g_norm_floor
AGREES = "agrees?"  # among the notes: here stands what the column means for the quantities that were compared
DEPTH = (
    "D3 is the gain over the matched control (same network, data, epochs, seed; stem by the same rule, blocks frozen) "
    "with its 95 % interval: the spread over seeds and the error of the finite test set, from paired predictions; it "
    "is undecided where the interval straddles the 2 pp margin; (+n seeds): so many more would decide it at the spread "
    "seen. It is the primary control, named before any run. "
    "Beside it the gain over the control whose stem is trained by BP, usually the stronger one"
)
VERDICT = RULE
DAGGER = "† published for a mean loss over about 1024 samples, converted to 128 (× 8)"


# -- a table while it is filled --------------------------------------------------------------------------------


class Against(NamedTuple):
    """A cell of ours with the published figures beside it: two columns.

    Args:
        name: under which "agrees?" names it; not judged where it is empty.
        value: what is compared.
        n: of how many runs it is.
        rule: whose it is, where several have the same figure beside them: the code of a rule.
    """

    name: str
    cell: Cell | str
    value: float | str | None
    printed: Sequence[Figure]
    n: int = 0
    rule: str = ""


def against(name: str, ours: Stat | None, kind: str, printed: Sequence[Figure]) -> Against:
    """Set mean ± std of ours beside what is published."""
    return Against(name, spread(ours, kind), ours and ours.mean, printed, ours.n if ours else 0)


def among(printed: Iterable[Figure], what: str) -> list[Figure]:
    """Return the figures of one quantity."""
    return [f for f in printed if f.what == what]


def count(n: int) -> Cell:
    """Return a number of runs as a cell."""
    return Cell(str(n), n)


@dataclass
class Draft:
    """A table while it is filled: its rows, the runs it lacks, and the kinds of quantities it compares."""

    records: Records
    title: str
    columns: list[str]
    notes: list[str]
    rows: list[list[Cell | str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    specs: list[RunSpec] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    compared: list[Against] = field(default_factory=list)
    alone: dict[Setting, Judged] = field(default_factory=dict)  # the settings that were asked for, each on its own
    beside: dict[Setting, Judged] = field(default_factory=dict)  # the same beside each other: these are shown

    def row(self, *cells: Cell | str | Against) -> None:
        """Add a row; a last column "agrees?" that is not given is answered from what stands beside ours."""
        filled: list[Cell | str] = []
        for cell in cells:
            filled += [cell.cell, published(cell.printed)] if isinstance(cell, Against) else [cell]
        if len(filled) < len(self.columns):
            filled.append(answer(self.agreeing(cell for cell in cells if isinstance(cell, Against))))
        self.rows.append(filled)

    def agreeing(self, pairs: Iterable[Against]) -> dict[str, bool | None]:
        """Return whether each of ours agrees, and remember which kinds of quantities were compared."""
        found = {}
        for pair in pairs:
            self.kinds |= {f.kind for f in pair.printed}
            self.compared += [pair] if pair.printed else []
            if pair.name:
                found[pair.name] = agrees_any(pair.value, pair.printed)
        return found

    def lack(self, setting: Setting, controls: bool = True) -> None:
        """List what a setting lacks under Missing, its controls too where they are asked for."""
        self.specs += lacking(self.records, setting, controls)

    def runs(self, setting: Setting) -> tuple[Record, ...]:
        """Return the runs of a setting; those of its three seeds that are not there are missing."""
        self.lack(setting, controls=False)
        return select(self.records, setting)

    def judged(self, setting: Setting, controls: bool = True) -> Judged:
        """Return a setting judged; runs and controls that are not there are missing."""
        self.lack(setting, controls)
        found = self.alone[setting] = judged(self.records, setting)
        return self.beside.get(setting, found)

    def variants(self, settings: Iterable[Setting]) -> list[bool]:
        """See `variants`."""
        return variants(self.records, settings)

    def primary(self) -> Iterator[tuple[bool, str, Setting]]:
        """Yield (augmented?, name, setting) of the six rules of the primary audit, by variant."""
        for flag in self.variants(map(Setting, RULES)):
            yield from ((flag, name, Setting(rule, augment=flag)) for rule, name in RULES.items())

    def table(self, name: str) -> Table:
        """Return the finished table."""
        notes = [text for note in self.notes for text in (rules(self.kinds) if note == AGREES else [note])]
        notes += filter(None, [with_discovery_rate(self.alone)[1]])
        missing = [*self.missing, *commands(self.specs, self.records.store)]
        return table(name, self.title, self.columns, self.rows, notes, missing)


@dataclass(frozen=True)
class Evidence:
    """One table of the papers' evidence: Records -> Table. `place` orders the tables."""

    name: str
    about: str
    place: int
    title: str
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    fill: Callable[[Draft], None]

    def __call__(self, records: Records) -> Table:
        """Return the table made of these runs."""
        return self._filled(records).table(self.name)

    def compared(self, records: Records) -> list[Against]:
        """Return every cell of ours beside which something is published."""
        return self._filled(records).compared

    def _filled(self, records: Records) -> Draft:
        draft = self._draft(records, {})
        beside, _ = with_discovery_rate(draft.alone)
        return draft if beside == draft.alone else self._draft(records, beside)

    def _draft(self, records: Records, beside: dict[Setting, Judged]) -> Draft:
        draft = Draft(records, self.title, list(self.columns), list(self.notes), beside=beside)
        self.fill(draft)
        return draft


def evidence_table(place: int, title: str, columns: str, *notes: str) -> Callable[[Callable[[Draft], None]], Evidence]:
    """Make a function that fills a Draft a table, named after it and described by the first line of its docstring.

    Args:
        place: where it stands among the tables; they count in tens.
        columns: the heads, as "rule | acc".
        notes: how to read it; AGREES among them is replaced by the rules of agreement.
    """

    def made(fill: Callable[[Draft], None]) -> Evidence:
        about = (fill.__doc__ or "").strip().splitlines()[0]
        return Evidence(fill.__name__.replace("_", "-"), about, place, title, tuple(columns.split(" | ")), notes, fill)

    return made


def rules(kinds: Iterable[str]) -> list[str]:
    """Return the notes that say what "agrees?" means for these kinds of quantities."""
    known = set(kinds)
    sentences = [text for kind, text in AGREES_WHEN.items() if kind in known]
    if not sentences:
        return ["nothing is published to compare with"]
    return [f"agrees?: {'; '.join(sentences)}; {ANY}", *([DAGGER] if "norm" in known else [])]


def variants(records: Records, settings: Iterable[Setting]) -> list[bool]:
    """Return with augmentation, without, or both: what there are runs of; with it where there are none."""
    settings = list(settings)
    if all(s.data in VECTORS for s in settings):
        return [False]
    return [a for a in (True, False) if any(select(records, replace(s, augment=a)) for s in settings)] or [True]


# -- cells of a judged setting ---------------------------------------------------------------------------------


def depth_cell(j: Judged, stem: str = "rule") -> Cell:
    """Return D3: the gain, its interval, what follows, and of how many seeds where not all have their control."""
    finding, paired = (j.depth, j.paired[0]) if stem == "rule" else (j.depth_bp, j.paired[1])
    if finding is None or finding.value is None:
        return Cell(NONE)
    names = ("value", "interval", "parts", "flagged", "reason", "more")
    raw = {name: getattr(finding, name) for name in names}
    least = [f"+{n:,} {name}" for name, n in (finding.more or {}).items()]
    if among_many(finding):
        least = ["among so many", *least]
    elif finding.straddles and not least:
        least = ["+seeds and samples"]
    more = "".join(f" ({words})" for words in least)
    some = "" if paired == len(j.runs) else f" ({paired} of {len(j.runs)} seeds)"
    text = f"{finding.value:+z.1f}{interval_text(finding)} {depth_word(finding)}{more}{some}"
    return Cell(text, {**raw, "n": paired})


def among_many(finding: Finding) -> bool:
    """Return whether a finding is decided alone, but not with the false discovery rate of its table held."""
    low, high = finding.interval or (finding.limit, finding.limit)
    return finding.straddles and not low <= finding.limit <= high


def interval_text(finding: Finding) -> str:
    """Return the interval of a finding with a space before it, empty where there is none."""
    return "" if finding.interval is None else " [{:+z.1f}, {:+z.1f}]".format(*finding.interval)


def depth_word(finding: Finding) -> str:
    """Return ok, flags, undecided, or not tested."""
    if finding.flagged is None:
        return "undecided" if finding.straddles else "not tested"
    return "flags" if finding.flagged else "ok"


def failed_words(counts: Mapping[str, int], n: int) -> str:
    """Return which checks walk a claim back, and on how many of `n` seeds where not on all: check -> number of seeds.

    >>> failed_words({"D1": 1, "D2": 1, "D3": 3}, 3)
    'D1 and D2 (1/3) D3'
    """
    if {"D1", "D2"} <= counts.keys() and counts["D1"] == counts["D2"] < n:  # together, on the same seeds
        counts = {"D1 and D2": counts["D2"], **{c: k for c, k in counts.items() if c not in ("D1", "D2")}}
    return " ".join(check if k == n else f"{check} ({k}/{n})" for check, k in counts.items())


def verdict_cell(j: Judged, edition: str) -> Cell:
    """Return the verdict over all seeds, and the checks behind it."""
    word, n = j.word(edition), len(j.runs)
    if word is None:
        return Cell(NONE)
    failed = failed_words(j.failed(edition), n)
    text = f"{word}: {failed}" if failed else word
    if not failed and not j.tested:
        text += " (D3 not tested)"
    return Cell(text, {"verdict": word, "failed": j.failed(edition), "n": n, "depth_tested": j.tested})


def flag_word(flags: Sequence[bool | None]) -> str | None:
    """Return over seeds: flags (with a count where not all do), ok, or None where nothing was measured."""
    known = [f for f in flags if f is not None]
    if not known:
        return None
    return "ok" if not any(known) else "flags" if all(known) else f"flags ({sum(known)}/{len(known)})"


def by_seed(runs: Iterable[Record]) -> dict[int, Record]:
    """Return seed -> run."""
    return {run.spec.seed: run for run in runs}


def valid_cell(at: Sequence) -> Cell:
    """Return of how many of these measurements the reference is above the floor of D2."""
    valid = sum(reference_validity("D2", m, FLOOR).flagged is False for m in at)
    return Cell(f"{valid}/{len(at)}", valid) if at else Cell(NONE)


# -- tables of judged settings ---------------------------------------------------------------------------------


class Column(NamedTuple):
    """A quantity of a judged setting: its cell, what of it is compared, and with which published quantity."""

    cell: Callable[[Judged], Cell]
    value: Callable[[Judged], float | str | None]
    what: str = ""
    note: str = ""


def _stat(what: str, kind: str) -> Column:
    return Column(lambda j: spread(j.stat(what), kind), lambda j: (s := j.stat(what)) and s.mean, what)


def _verdict(edition: str, what: str) -> Column:
    def word(j: Judged) -> str | None:
        return None if (said := j.word(edition)) == UNDECIDED else said

    return Column(lambda j: verdict_cell(j, edition), word, what, VERDICT)


def _word(word: Callable[[Judged], str | None], what: str = "") -> Column:
    return Column(lambda j: Cell(NONE) if (said := word(j)) is None else Cell(said, said), word, what)


COLUMNS = {
    "acc": _stat("acc", "acc"),
    "Γ": _stat("gamma", "cos"),
    "‖h_L‖": _stat("h_norm", "norm"),
    "‖g_L‖": _stat("g_norm", "norm"),
    "ρ": _stat("growth", "norm"),
    "stability": _stat("stability", "cos"),
    "deep cos": _stat("deep_cosine", "cos"),
    "ρ_pert": _stat("perturbation", "cos"),
    "D3 pp": Column(depth_cell, lambda j: j.depth and j.depth.value, "margin", DEPTH),
    "D3 pp, BP stem": Column(lambda j: depth_cell(j, "bp"), lambda j: None),
    "three-check": _verdict("three-check", "verdict.three"),
    "four-diagnostic": _verdict("four-diagnostic", "verdict.four"),
    "D1": _word(lambda j: flag_word(j.flagged("growth")), "flag.growth"),
    "D2": _word(lambda j: flag_word(j.flagged("reference")), "flag.reference"),
    "epochs": _word(lambda j: str(j.runs[0].spec.epochs) if j.runs else None),
}


class AuditRow(NamedTuple):
    """One group of rows: a setting under its labels, and what is published of it."""

    labels: tuple[str, ...]
    setting: Setting
    figures: tuple[Figure, ...] = ()


def audit(t: Draft, entries: Sequence[AuditRow], augment: Sequence[bool] | None = None) -> None:
    """Fill a table of judged settings, whose columns after "n" are heads of COLUMNS.

    Args:
        augment: the variants to show; by default those of which a network has runs.
    """
    chosen = {head: COLUMNS[head] for head in t.columns[t.columns.index("n") + 1 : -1]}
    for entry, after in zip(entries, [*entries[1:], None]):
        alike = [e.setting for e in entries if _network(e.setting) == _network(entry.setting)]
        theirs = {head: tuple(among(entry.figures, c.what)) if c.what else () for head, c in chosen.items()}
        shown: dict[str, tuple[Figure, ...]] | None = None
        for flag in augment if augment is not None else t.variants(alike):
            setting = replace(entry.setting, augment=flag)
            j = t.judged(setting, controls=bool({"D3 pp", "three-check"} & chosen.keys()))
            printed = {head: of_length(figures, setting, j.runs) for head, figures in theirs.items()}
            cells = [c.cell(j) for c in chosen.values()]
            found = t.agreeing(
                Against(h, cell, c.value(j), printed[h], len(j.runs), setting.rule)
                for (h, c), cell in zip(chosen.items(), cells)
                if c.what
            )
            t.row(*entry.labels, OURS[flag], count(len(j.runs)), *cells, answer(found))
            shown = printed if shown is None or (j.runs and not shorter(setting, j.runs)) else shown
        same = after is not None and after.figures == entry.figures
        if any(theirs.values()) and not same:
            labels = (*entry.labels[:-1], "frozen") if entry.setting.scope == "frozen" else entry.labels
            t.row(*labels, "published", NONE, *(published((shown or {}).get(head, ())) for head in chosen), NONE)
    t.notes += [*dict.fromkeys(c.note for c in chosen.values() if c.note), AGREES]


def of_length(printed: Sequence[Figure], setting: Setting, runs: Sequence[Record]) -> tuple[Figure, ...]:
    """Mark what is published of a longer training than these runs had, so that it is shown and not compared."""
    if not shorter(setting, runs):
        return tuple(printed)
    return tuple(replace(f, unlike=f.unlike or f"not of {runs[0].spec.epochs} epochs") for f in printed)


def _network(setting: Setting) -> tuple[object, ...]:
    return setting.net, setting.net_options, setting.data


def accuracies(runs: Iterable[Record]) -> Stat | None:
    """Return the test accuracies of runs."""
    return stat(run.accuracy for run in runs)
