"""Does our number agree with a published one? One stated rule per kind of quantity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from walkback.replication.published import Figure
from walkback.report.table import NONE, number

RULES = {
    "acc": "accuracies agree within 2 published standard deviations, at least within 0.02 (the protocol's own margin)",
    "cos": "cosines and correlations agree within 2 published standard deviations, at least within 0.02",
    "pp": "margins agree within 2 published standard deviations, at least within 2 pp",
    "norm": "norms, growth and other ratios agree within a factor 3, where only an order of magnitude is published "
    "within 10, where only a bound is published when they keep it",
    "loss": "changes of the training loss agree within a factor 3",
    "epoch": "epochs agree from half the first to twice the last published one; never agrees with never",
    "share": "shares agree within 0.05",
    "count": "counts agree when they are the same",
    "word": "verdicts and flags agree when they are the same; a flag that some seeds raise and others don't agrees "
    "with neither, and what is undecided or not tested is not compared",
}
_LEAST = {"acc": 0.02, "cos": 0.02, "pp": 2.0, "share": 0.05}
FORMER = {**_LEAST, "cos": 0.05}  # until the true CIFAR-10 was used; kept to count by it as well
ANY = (
    "where the documents differ, agreeing with one of them counts, a firm figure before an order of magnitude or a "
    "bound; of a published range all of it agrees, and beyond it what its kind allows beside a number (for norms and "
    "ratios nothing); a figure of other conditions or of longer trainings (in brackets) is not compared; ours is the "
    "mean over seeds, and where some seeds fire and others never do, it agrees with nothing"
)


def agrees(ours: float | str | None, figure: Figure, least: Mapping[str, float] = _LEAST) -> bool | None:
    """Return whether our value agrees with a published one; None where there is nothing to compare.

    Args:
        least: kind -> what may always lie between them.

    >>> from walkback.replication.published import figures
    >>> (dfa,) = figures("primary", "dfa", what="acc", source="002")
    >>> agrees(0.32, dfa), agrees(0.40, dfa), agrees(None, dfa)
    (True, False, None)
    """
    if ours is None:
        return None
    if isinstance(figure.value, str) or isinstance(ours, str):
        return ours == figure.value
    if isinstance(figure.value, tuple):
        low, high = figure.value
        if figure.kind == "epoch":
            return low / 2 <= ours <= 2 * high
        slack = least.get(figure.kind, 0.0)
        return low - slack <= ours <= high + slack
    value = figure.number
    if figure.kind == "count":
        return ours == value
    if figure.bound:
        return ours > value if figure.bound == ">" else ours < value
    if figure.kind in least:
        return abs(ours - value) <= max(2 * (figure.std or 0.0), least[figure.kind]) + 1e-12
    factor = 10.0 if figure.rough else 3.0
    return ours * value > 0 and 1 / factor <= ours / value <= factor


def agrees_any(ours: float | str | None, figures: Iterable[Figure], least: Mapping[str, float] = _LEAST) -> bool | None:
    """Return True if one of the variants agrees, None if there is none.

    Orders of magnitude and bounds count only where no firm figure is published, and figures of other conditions never.

    >>> from walkback.replication.published import figures
    >>> growth = figures("primary", "dfa", what="growth")
    >>> [f"{f.bound}{f.value:g}" for f in growth], agrees_any(300, growth), agrees_any(6000, growth)
    (['237', '>90'], True, False)
    """
    alike = [f for f in figures if not f.unlike]
    firm = [f for f in alike if not (f.rough or f.bound)]
    found = [a for a in (agrees(ours, f, least) for f in firm or alike) if a is not None]
    return any(found) if found else None


def answer(by_column: dict[str, bool | None]) -> str:
    """Return the cell under "agrees?": yes, no, or how many of how many and which do not.

    >>> answer({"acc": True, "Γ": None}), answer({"acc": True, "Γ": False}), answer({"acc": None})
    ('yes', '1 of 2, not Γ', '–')
    """
    known = {k: v for k, v in by_column.items() if v is not None}
    if not known:
        return NONE
    wrong = [k for k, v in known.items() if not v]
    if not wrong:
        return "yes"
    return "no" if len(wrong) == len(known) else f"{len(known) - len(wrong)} of {len(known)}, not {', '.join(wrong)}"


def published(figures: Sequence[Figure]) -> str:
    """Return all variants in one cell, with their sources; † was converted from the convention of about 1024 samples.

    >>> from walkback.replication.published import figures as published_figures
    >>> published(published_figures("lambda-sweep", "bp", what="acc", penalty=1e-2))
    '0.532 ± 0.007 [004]; 0.530 [001]'
    """
    merged: dict[str, list[str]] = {}
    for f in figures:
        merged.setdefault(_text(f), []).extend(f.source.split())
    return "; ".join(f"{text} [{', '.join(sorted(set(sources)))}]" for text, sources in merged.items()) or NONE


def _text(f: Figure) -> str:
    text = f.value if isinstance(f.value, str) else _value(f)
    seed = "" if f.seed is None else f" seed {f.seed}" if f.seed else " one seed"
    return text + seed + (f" ({f.unlike})" if f.unlike else "")


def _value(f: Figure) -> str:
    kind = {"epoch": "int", "count": "int", "loss": "cos", "share": "acc"}.get(f.kind, f.kind)
    if isinstance(f.value, tuple):
        low, high = f.value
        return number(low, kind) if low == high else f"{number(low, kind)}…{number(high, kind)}"
    assert not isinstance(f.value, str)
    scale = f.number / f.value if f.value else 1.0
    text = f.bound + ("~" if f.rough else "") + number(f.number, kind)
    if f.std is not None:
        std = f.std * scale
        text += f" ± {std:g}" if kind == "pp" else f" ± {number(std, kind).lstrip('+')}"
    return text + ("†" if scale != 1.0 else "")
