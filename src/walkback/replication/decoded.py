"""Every published figure in one table: beside it our runs under the papers' conventions and under our own.

What explains a difference is said with how far it is known: tested (a run with and without it), bounded search (looked
for among the tries under evidence/search, and not found), open (nothing tried explains it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from walkback.audit.as_published import CONTROL, CONTROLS
from walkback.audit.plans import plan, unique
from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, Setting, select
from walkback.audit.wording import commands
from walkback.replication.agree import FORMER, agrees_any, published
from walkback.replication.agree import RULES as AGREES_WHEN
from walkback.replication.conventions import as_published
from walkback.replication.published import FIGURES, Figure
from walkback.replication.tables import TABLES
from walkback.replication.tables.audits import NETWORKS
from walkback.replication.tables.build import DAGGER, Against, against
from walkback.replication.tables.courses import early_runs
from walkback.report.table import NONE, Cell, Table, number, stat, table

NAMES = {
    "acc": "accuracy",
    "gamma": "Γ",
    "h_norm": "‖h_L‖",
    "g_norm": "‖g_L‖",
    "growth": "ρ",
    "growth_total": "‖h_L‖/‖h_0‖",
    "branch_growth": "growth of block outputs",
    "ratio": "largest over smallest Γ of",
    "count": "number of",
    "cosine": "cosine",
    "deep_cosine": "deep cosine",
    "perturbation": "ρ_pert",
    "nudging": "nudge",
    "margin": "over frozen, pp",
    "train_loss_delta": "Δ train loss",
    "weight_growth": "‖w − w₀‖/‖w₀‖",
    "norm_product": "‖w₁‖·‖w₂‖",
    "product_growth": "growth of ‖w₁‖·‖w₂‖",
    "fired": "first epoch of",
    "saved": "compute saved",
}

ASIDE = "tested, not in the preset"
_NO_SCALE = "blocks whose LayerNorm has no scale give it, but then not the end of training"
# Where, rule, quantity, perhaps @epoch (patterns), how it is known, what explains the difference. The first that fits
# is told.
EXPLAINED = (
    ("mechanism dfa g_norm @[1-4]", ASIDE, _NO_SCALE),
    ("early-epochs dfa g_norm @[1-4]", ASIDE, _NO_SCALE),
    ("temporal dfa fired.a", ASIDE, _NO_SCALE),
    ("* fa *cosine*", "tested", "one site off: cos(a_{l+1}, g_l), which ends in cos(g_L, g_{L−1})"),
    ("* fa gamma", "tested", "one site off: its last term is cos(g_L, g_{L−1}), near 1 in any such network"),
    ("* fa growth", "open", "inferred from a flag of D1"),
    ("* fa g_norm", "open", "the reader's site lets the stream grow; ‖g_L‖ stays above the published one"),
    ("* ep *", "bounded search", "a weak nudge in float32 gives accuracy and Γ by rounding, not ‖h_L‖ and ρ"),
    ("* state-bridge *", "bounded search", "G, its inputs and its error are not stated"),
    ("* credit-bridge *", "bounded search", "whether V sees the label is not stated"),
    ("* dfa growth*", "open", "ρ is that of the first block over the stem, and nothing tried keeps it near 237"),
    ("* dfa norm_product", ASIDE, "its growth since initialisation is meant, as 001 says: the next row"),
    ("lambda-sweep dfa perturbation", ASIDE, "half the cosine is what rounding leaves of a short step in float32"),
    ("* dfa perturbation.penalised", ASIDE, "half the cosine is what rounding leaves of a short step in float32"),
    ("* * nudging", "tested", "published steps are η√d long"),
    ("no-norm * *", "open", "without a terminal norm our stream does not explode"),
    ("student * *", "open", "neither of our conventions has all of its growth and accuracies"),
    ("small-cnn dfa *", "tested", "a branch that ends in BatchNorm can't grow"),
    ("vit-mini * *", "open", "ours was trained for fewer epochs than the published 30"),
    ("linear-probe * acc", "open", "by the networks' recipe a linear model of the pixels overfits"),
    ("* frozen* acc", "tested", "one published number for several stems"),
    ("* dfa *", "tested", "credit of one length per sample, given to the block that reads the site"),
)
PLANS = ("as-published", "as-published-penalty", "as-published-networks")
_KEY = ("where", "rule", "what", "penalty", "epoch", "site")


def decoded(published_way: Records, own_way: Records) -> Table:
    """Return the table of all published figures.

    Args:
        published_way: runs among which those of the papers' conventions are looked for.
        own_way: runs of our default conventions.

    >>> from pathlib import Path
    >>> nothing = Records(Path("runs"))
    >>> len(decoded(nothing, nothing).rows) > 250
    True
    """
    view = as_published(published_way)
    found = [_over_one_control(_ours_by_figure(view), view), _ours_by_figure(own_way)]
    groups: dict[tuple[Any, ...], list[Figure]] = {}
    for figure in FIGURES:
        groups.setdefault(_key(figure), []).append(figure)
    rows, answers = [], []
    for key, printed in groups.items():
        theirs, ours = (by.get(key) for by in found)
        marks = [None if cell is None else _agrees(cell, printed) for cell in (theirs, ours)]
        rows.append(
            [
                *_labels(printed[0]),
                published(printed),
                *(_cell(cell) for cell in (theirs, ours)),
                *(_yes(mark and mark[0]) for mark in marks),
                _explained(printed[0], marks),
            ]
        )
        answers.append(marks)
    asked = unique(spec for name in PLANS for spec in plan(name).specs)
    missing = [spec for spec in asked if published_way.find(spec) is None]
    columns = (
        "setting | rule | quantity | published | as-published, ours | our default | agrees? | default agrees? | "
        "what explains the rest"
    )
    return table(
        "decoded",
        "Every published figure, beside our runs under the papers' conventions and under our own",
        columns,
        rows,
        [*_counts(answers), *_notes()],
        commands(missing, published_way.store),
    )


def _key(figure: Figure) -> tuple[Any, ...]:
    return tuple(getattr(figure, name) for name in _KEY)


def _ours_by_figure(records: Records) -> dict[tuple[Any, ...], Against]:
    """Return figure -> what our runs have beside it: the first variant that has any, of controls that of DFA's stem."""
    out: dict[tuple[Any, ...], Against] = {}
    for pair in (*(p for each in TABLES.values() for p in each.compared(records)), *_beside_no_table(records)):
        for key in {_key(f) for f in pair.printed}:
            known = out.get(key)
            better = known is None or known.value is None or (key[1] == "frozen" and pair.rule == "dfa" != known.rule)
            if better and (pair.value is not None or known is None):
                out[key] = pair
    return out


GAINS = {"margin": "acc", "margin.frozen": "acc.with"}  # a gain over frozen blocks -> the accuracy it is of


def _over_one_control(found: dict[tuple[Any, ...], Against], records: Records) -> dict[tuple[Any, ...], Against]:
    """Return the same with gains over the one control that the documents subtract, which becomes the frozen figure."""
    out = dict(found)
    for figure in FIGURES:
        key, alike = _key(figure), CONTROLS.get(figure.where, CONTROL)
        control = stat(run.accuracy for run in select(records, Setting(**alike, scope="frozen", augment=True)))
        if figure.rule == "frozen" and figure.what == "acc" and figure.where in CONTROLS:
            out[key] = against("", control, "acc", [figure])
        elif figure.what in GAINS:
            of = found.get((figure.where, figure.rule, GAINS[figure.what], *key[3:]))
            printed = [replace(f, unlike="") for f in FIGURES if _key(f) == key]
            ours = None if of is None else of.value
            value = 100 * (ours - control.mean) if isinstance(ours, float) and control is not None else None
            out[key] = Against(
                "", Cell(NONE if value is None else number(value, "pp"), value), value, printed, of.n if of else 0
            )
    return out


def _beside_no_table(records: Records) -> Iterable[Against]:
    """Yield what is published in words of a sentence, and has no table of its own, beside ours."""
    dfa = select(records, Setting("dfa", augment=True))
    orders = [value for run in dfa[:1] for value in run.report.aggregates.values() if value is not None]
    span = f"{min(orders):+z.3f}…{max(orders):+z.3f}" if orders else NONE
    yield Against("", Cell(span, orders or None), None, _figures("aggregation", "gamma.orders"), len(dfa[:1]))
    sizes = [abs(value) for value in orders if value]
    yield against("", stat([max(sizes) / min(sizes)] if sizes else []), "norm", _figures("aggregation", "ratio.orders"))
    yield against("", stat(run.measurements.growth_total for run in dfa), "norm", _figures("primary", "growth_total"))
    early = early_runs(records, True, 1)
    yield against(
        "", stat(run.epochs[1][2].g_norm[2] for run in early), "norm", _figures("early-epochs", "g_norm.site2")
    )
    vit = next(setting for _, setting, _, where in NETWORKS if where == "vit-mini")
    runs = select(records, replace(vit, rule="dfa", augment=True))
    yield against("", stat(_largest(run) for run in runs), "cos", _figures("vit-mini", "cosine.all"))


def _figures(where: str, what: str) -> tuple[Figure, ...]:
    return tuple(f for f in FIGURES if f.where == where and f.what == what)


def _largest(run: Record) -> float | None:
    """Return the cosine of a run that is furthest from zero."""
    return max((c for c in run.measurements.cosine if c is not None), key=abs, default=None)


def _agrees(pair: Against, printed: Sequence[Figure]) -> tuple[bool | None, bool | None]:
    """Return whether ours agrees, by the rule as it is and by the former one."""
    as_compared = [f for f in pair.printed if _key(f) == _key(printed[0])] or printed
    return agrees_any(pair.value, as_compared), agrees_any(pair.value, as_compared, FORMER)


def _labels(f: Figure) -> tuple[str, str, str]:
    what, _, part = f.what.partition(".")
    where = [f.where, f"λ {f.penalty:g}" if f.penalty else "", f"epoch {f.epoch}" if f.epoch is not None else ""]
    quantity = [NAMES.get(what, what), part.replace("_", " "), f"at site {f.site}" if f.site is not None else ""]
    return ", ".join(filter(None, where)), RULES.get(f.rule, f.rule or NONE), " ".join(filter(None, quantity))


def _cell(pair: Against | None) -> Cell | str:
    if pair is None:
        return NONE
    cell = pair.cell if isinstance(pair.cell, Cell) else Cell(pair.cell, pair.cell)
    if cell.text == NONE and isinstance(pair.value, float):  # a table that shows it in another column
        cell = Cell(number(pair.value, pair.printed[0].kind), pair.value)
    return cell if cell.text == NONE or not pair.n else Cell(f"{cell.text} (n={pair.n})", cell.raw)


def _yes(mark: bool | None) -> str:
    return {True: "yes", False: "no", None: NONE}[mark]


def _explained(f: Figure, marks: Sequence[tuple[bool | None, bool | None] | None]) -> str:
    """Return what is known of a figure that one of ours does not have."""
    if not any(mark is not None and mark[0] is False for mark in marks):
        return NONE
    preset = marks[0] and marks[0][0]
    fitting = [why for pattern, *why in EXPLAINED if fits(pattern, f) and not (preset and why[0] == ASIDE)]
    known, why = next(iter(fitting), ("open", ""))
    if known == "tested" and preset is False:
        return "open: not by the preset either"  # what was tested is part of it
    if known == "tested" and preset is None:
        return f"open: no run of the preset here yet; in others {why}"
    return f"{known}: {why}" if why else known


def fits(pattern: str, f: Figure) -> bool:
    """Return whether a pattern of EXPLAINED is of a figure."""
    name = f"{f.where} {f.rule or '-'} {f.what}"
    return fnmatch(name, pattern) or fnmatch(f"{name} @{f.epoch}", pattern)


def _counts(answers: Sequence[Sequence[tuple[bool | None, bool | None] | None]]) -> list[str]:
    out = []
    for name, side in (("as-published", 0), ("our default", 1)):
        for rule, which in (("the rule below", 0), ("the former rule (cosines within 0.05)", 1)):
            known = [m[which] is True for marks in answers if (m := marks[side]) is not None and m[which] is not None]
            out.append(f"{name}: {sum(known)} of {len(known)} figures that can be compared agree by {rule}")
    return out


def _notes() -> list[str]:
    return [
        "as-published, ours: trained on the true CIFAR-10 and CIFAR-100 under the preset as-published (docs/audit.md); "
        "our default: the records under results, trained on a JPEG copy of CIFAR-10; each is held against the "
        "published figure alone",
        "over frozen: as-published over the one control that the documents subtract on a data set, our default over "
        "each run's own control, with its interval",
        "figures that a document derives from others of its own (differences, ratios to a baseline) are not repeated",
        "mean ± standard deviation over n runs; – where there is no run yet, or nothing that can be compared",
        "agrees?: " + "; ".join(AGREES_WHEN.values()),
        "tested: a run, or a reading of it, with and without it; bounded search: looked for and not found; open: "
        "nothing tried explains it",
        DAGGER,
    ]
