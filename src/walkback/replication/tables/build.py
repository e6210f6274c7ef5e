"""From settings and published figures to a table: ours, one row per setting, and what is published below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from walkback.audit.records import Record, Records
from walkback.audit.settings import Judged, Setting, commands, judged, lacking, select, shorter
from walkback.replication.agree import ANY, RULES, agrees_any, answer, published
from walkback.replication.published import Figure
from walkback.report.table import NONE, Cell, Stat, Table, spread, table
from walkback.verdict.checks import Finding
from walkback.verdict.editions import UNDECIDED

OURS = {True: "ours, augmented", False: "ours, plain"}
VECTORS = ("teacher", "teacher-linear")  # nothing to flip or crop
DEPTH = (
    "D3 is the gain over the matched control (same network, data, epochs, seed; stem by the same rule, blocks frozen) "
    "with its 95 % interval: paired t over seeds, for one seed the binomial error of the paired predictions; it is "
    "undecided where the interval straddles the 2 pp margin. Beside it the gain over the control whose stem "
    "is trained by BP, usually the stronger one"
)
VERDICT = "a rule passes only where every seed does; (k/n) says on how many of the seeds a check fails"
DAGGER = "† published for a mean loss over about 1024 samples, converted to 128 (× 8)"


@dataclass(frozen=True)
class Column:
    """A quantity of a judged setting, and the published one it is compared with."""

    head: str
    kind: str
    value: Callable[[Judged], Stat | Finding | str | None]
    what: str = ""


def _stat(head: str, kind: str, what: str) -> Column:
    return Column(head, kind, lambda j: j.stat(what), what)


def depth_cell(j: Judged, stem: str = "rule") -> Cell:
    """D3: the gain, its interval, what follows, and of how many seeds where not all have their control."""
    finding, paired = (j.depth, j.paired[0]) if stem == "rule" else (j.depth_bp, j.paired[1])
    if finding is None or finding.value is None:
        return Cell(NONE)
    raw = {"value": finding.value, "interval": finding.interval, "flagged": finding.flagged, "reason": finding.reason}
    interval = "" if finding.interval is None else " [{:+.1f}, {:+.1f}]".format(*finding.interval)
    some = "" if paired == len(j.runs) else f" ({paired} of {len(j.runs)} seeds)"
    return Cell(f"{finding.value:+.1f}{interval} {depth_word(finding)}{some}", {**raw, "n": paired})


def depth_word(finding: Finding) -> str:
    """ok, flags, undecided, or not tested."""
    if finding.flagged is None:
        return "undecided" if finding.straddles else "not tested"
    return "flags" if finding.flagged else "ok"


def failed_words(counts: Mapping[str, int], n: int) -> str:
    """Which checks walk a claim back, and on how many of `n` seeds where not on all: check -> number of seeds.

    >>> failed_words({"D1": 1, "D2": 1, "D3": 3}, 3)
    'D1 and D2 (1/3) D3'
    """
    if {"D1", "D2"} <= counts.keys() and counts["D1"] == counts["D2"] < n:  # together, on the same seeds
        counts = {"D1 and D2": counts["D2"], **{c: k for c, k in counts.items() if c not in ("D1", "D2")}}
    return " ".join(check if k == n else f"{check} ({k}/{n})" for check, k in counts.items())


def verdict_cell(j: Judged, edition: str) -> Cell:
    """The verdict over all seeds, and the checks behind it."""
    word, n = j.word(edition), len(j.runs)
    if word is None:
        return Cell(NONE)
    failed = failed_words(j.failed(edition), n)
    text = f"{word}: {failed}" if failed else word
    if not failed and not j.tested:
        text += " (D3 not tested)"
    return Cell(text, {"verdict": word, "failed": j.failed(edition), "n": n, "depth_tested": j.tested})


def _verdict(head: str, edition: str, what: str) -> Column:
    return Column(head, "verdict", lambda j: edition, what)


def flag_word(flags: Sequence[bool | None]) -> str | None:
    """Over seeds: flags (with a count where not all do), ok, or None where nothing was measured."""
    known = [f for f in flags if f is not None]
    if not known:
        return None
    return "ok" if not any(known) else "flags" if all(known) else f"flags ({sum(known)}/{len(known)})"


COLUMNS = {
    "acc": _stat("acc", "acc", "acc"),
    "gamma": _stat("Γ", "cos", "gamma"),
    "h_norm": _stat("‖h_L‖", "norm", "h_norm"),
    "g_norm": _stat("‖g_L‖", "norm", "g_norm"),
    "growth": _stat("ρ", "norm", "growth"),
    "stability": _stat("stability", "cos", "stability"),
    "deep_cosine": _stat("deep cos", "cos", "deep_cosine"),
    "perturbation": _stat("ρ_pert", "cos", "perturbation"),
    "depth": Column("D3 pp", "depth", lambda j: j.depth, "margin"),
    "depth_bp": Column("D3 pp, BP stem", "depth", lambda j: j.depth_bp),
    "three": _verdict("three-check", "three-check", "verdict.three"),
    "four": _verdict("four-diagnostic", "four-diagnostic", "verdict.four"),
    "scale": Column("D1", "flag", lambda j: flag_word(j.flagged(0)), "flag.growth"),
    "reference": Column("D2", "flag", lambda j: flag_word(j.flagged(1)), "flag.reference"),
    "epochs": Column("epochs", "text", lambda j: str(j.runs[0].spec.epochs) if j.runs else None),
}


def _cell(column: Column, j: Judged) -> Cell:
    value = column.value(j)
    if column.kind == "depth":
        return depth_cell(j, "rule" if column.what else "bp")
    if column.kind == "verdict":
        return verdict_cell(j, str(value))
    if isinstance(value, Stat):
        return spread(value, column.kind)
    return Cell(NONE) if value is None else Cell(str(value), value)


def _comparable(column: Column, j: Judged) -> float | str | None:
    value = column.value(j)
    if column.kind == "verdict":
        word = j.word(str(value))
        return None if word == UNDECIDED else word
    if isinstance(value, Finding):
        return value.value
    return value.mean if isinstance(value, Stat) else value


@dataclass(frozen=True)
class Entry:
    """One group of rows: a setting under its labels, and what is published of it."""

    labels: tuple[str, ...]
    setting: Setting
    figures: tuple[Figure, ...] = ()


def variants(records: Records, settings: Iterable[Setting]) -> list[bool]:
    """With augmentation, without, or both: what there are runs of; with it where there are none."""
    settings = list(settings)
    if all(s.data in VECTORS for s in settings):
        return [False]
    return [a for a in (True, False) if any(select(records, replace(s, augment=a)) for s in settings)] or [True]


def audit(
    name: str,
    title: str,
    records: Records,
    heads: Sequence[str],
    entries: Sequence[Entry],
    columns: Sequence[str],
    notes: Iterable[str] = (),
    augment: Sequence[bool] | None = None,
) -> Table:
    """A table of judged settings.

    Args:
        heads: names of the entries' labels.
        columns: keys of COLUMNS.
        augment: the variants to show; by default those of which a network has runs.
    """
    chosen = [COLUMNS[key] for key in columns]
    rows, missing, compared = [], [], set()
    for entry, after in zip(entries, [*entries[1:], None]):
        alike = [e.setting for e in entries if _network(e.setting) == _network(entry.setting)]
        shown: dict[str, tuple[Figure, ...]] | None = None
        for flag in augment if augment is not None else variants(records, alike):
            setting = replace(entry.setting, augment=flag)
            j = judged(records, setting)
            missing += lacking(records, setting, controls="depth" in columns or "three" in columns)
            said = {c.head: of_length(_of(entry, c), setting, j.runs) for c in chosen if c.what}
            found = {c.head: agrees_any(_comparable(c, j), said[c.head]) for c in chosen if c.what}
            compared |= {f.kind for c in chosen for f in _of(entry, c)}
            rows.append([*entry.labels, OURS[flag], _n(len(j.runs)), *(_cell(c, j) for c in chosen), answer(found)])
            shown = said if shown is None or (j.runs and not shorter(setting, j.runs)) else shown
        same = after is not None and after.figures == entry.figures
        if any(_of(entry, c) for c in chosen) and not same:
            cells = [published(shown.get(c.head, ()) if shown else ()) for c in chosen]
            labels = (*entry.labels[:-1], "frozen") if entry.setting.scope == "frozen" else entry.labels
            rows.append([*labels, "published", NONE, *cells, NONE])
    below = [*notes]
    if any(c.kind == "depth" for c in chosen):
        below.append(DEPTH)
    if any(c.kind == "verdict" for c in chosen):
        below.append(VERDICT)
    below += rules(compared)
    heads = [*heads, "figures", "n", *(c.head for c in chosen), "agrees?"]
    return table(name, title, heads, rows, below, commands(missing, records.store))


def _n(n: int) -> Cell:
    return Cell(str(n), n)


def rules(kinds: Iterable[str]) -> list[str]:
    """The notes that say what "agrees?" means for these kinds of quantities."""
    known = set(kinds)
    said = [text for kind, text in RULES.items() if kind in known]
    if not said:
        return ["nothing is published to compare with"]
    return [f"agrees?: {'; '.join(said)}; {ANY}", *([DAGGER] if "norm" in known else [])]


def _of(entry: Entry, column: Column) -> tuple[Figure, ...]:
    return tuple(f for f in entry.figures if f.what == column.what) if column.what else ()


def of_length(said: Sequence[Figure], setting: Setting, runs: Sequence[Record]) -> tuple[Figure, ...]:
    """What is published of a longer training than these runs had is shown and not compared."""
    if not shorter(setting, runs):
        return tuple(said)
    return tuple(replace(f, unlike=f.unlike or f"not of {runs[0].spec.epochs} epochs") for f in said)


def _network(setting: Setting) -> tuple[object, ...]:
    return setting.net, setting.net_options, setting.data


def compare(label: Sequence[str | Cell], ours: Cell, value: float | str | None, figures: Sequence[Figure]) -> list:
    """A row of a long table: labels, ours, published, agrees?."""
    found = agrees_any(value, figures)
    return [*label, ours, published(figures), {True: "yes", False: "no", None: NONE}[found]]
