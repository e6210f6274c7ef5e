"""What the page of a store says in words: three sentences of findings, what to do about a check, what terms mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import metadata
from typing import Any

from walkback.audit.plans import counted
from walkback.report.table import number
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.editions import PASSES, UNDECIDED, WALKED_BACK

Setting = Mapping[str, Any]
LIMITS = DiagnosticThresholds()
RULE = "walked back if (D1 and D2) or D3"

# Term -> (what it means, the page of the documentation that says more).
DEFINITIONS = {
    "accuracy": ("test accuracy after the last epoch, mean ± standard deviation over seeds", "reading-a-report"),
    "Γ": (
        "alignment: the cosine of the credit signal with the BP gradient, averaged over sites 0…L−1. Site L is left "
        "out, because there most rules use the BP gradient itself",
        "measurements",
    ),
    "frozen": (
        "random-blocks baseline: the same network, data, recipe and seed with the blocks left as initialised; only "
        "stem and readout are trained",
        "protocol",
    ),
    "gain": (
        f"D3, depth utility: accuracy minus that of the frozen control, in percentage points, with its 95 % interval; "
        f"flags below {LIMITS.frozen_acc_margin_pp:g} pp",
        "protocol",
    ),
    "D1": (
        f"scale stability: the largest growth of the residual stream in one block, ‖h_l‖ / ‖h_l−1‖; flags above "
        f"{LIMITS.h_norm_explosion_ratio:g}",
        "protocol",
    ),
    "D2": (
        f"reference validity: the norm of the BP gradient at the last site, per sample ÷ 128; flags below "
        f"{LIMITS.g_norm_floor:g}, where the ε of a cosine decides its value",
        "protocol",
    ),
    "D3": ("depth utility: the gain over the frozen control", "protocol"),
    "undecided": ("a check that the verdict needs was not tested, or its interval straddles the limit", "what-if"),
    "site": ("a place on the residual stream: 0 after the stem, l after block l, L before the readout", "glossary"),
}

# (check, result) -> what to do. "ok" needs nothing.
TO_DO = {
    ("D1", "flags"): "Look where the stream grows (‖h‖ by site), then bound the credit's length or penalise λ‖f‖².",
    ("D1", "undecided"): "Train more seeds: the interval of their mean straddles the limit.",
    ("D2", "undecided"): "Train more seeds: the interval of their mean straddles the limit.",
    ("D1", "not tested"): "Log ‖h_l‖ at every site, or diagnose the checkpoint.",
    ("D2", "flags"): "Don't report a clamped cosine: give the unclamped one, checked in float64, or say that the "
    "reference has vanished.",
    ("D2", "not tested"): "Log ‖g_l‖ of the BP gradient at every site, or diagnose the checkpoint.",
    ("D3", "flags"): "Report the frozen control beside the accuracy: the trained blocks do not carry the claim.",
    ("D3", "not tested"): "Train the frozen control; the commands stand under “Missing controls”.",
    ("D3", "undecided"): "Train more seeds with their controls.",
}


def docs_address() -> str:
    """Return where the documentation is on the web, "" where the package names no place that exists."""
    named = dict(line.split(", ", 1) for line in metadata("walkback").get_all("Project-URL") or ())
    address = named.get("Documentation", "")
    return "" if ".invalid/" in address else address


def to_do(check: str, result: str, here: str = "") -> str:
    """Return what to do about a check's result, "" where nothing is; `here` may add what is known of this one.

    >>> to_do("D1", "ok"), to_do("D1", "flags (1/3)")[:36]
    ('', 'Look where the stream grows (‖h‖ by ')
    """
    text = TO_DO.get((check, result.partition(" (")[0]), "")
    return f"{text} Here {here}." if text and here else text


def findings(settings: Sequence[Setting]) -> list[str]:
    """Return three sentences: how many claims fall, what the reporting pair would have said of one, and why they do."""
    if not settings:
        return ["The store holds frozen controls only, so there is no claim to judge."]
    return [_verdicts(settings), _pair(settings), _reasons(settings)]


def _verdicts(settings: Sequence[Setting]) -> str:
    words = Counter(s["verdict"]["word"] for s in settings)
    fallen = Counter(s["rule"] for s in settings if s["verdict"]["word"] == WALKED_BACK)
    names = ", ".join(f"{rule} {n}×" if n > 1 else rule for rule, n in fallen.most_common(4))
    more = f" and {len(fallen) - 4} other rules" if len(fallen) > 4 else ""
    sentences = {
        WALKED_BACK: f"{words[WALKED_BACK]} would have to be walked back ({names}{more})",
        UNDECIDED: f"{words[UNDECIDED]} {'is' if words[UNDECIDED] == 1 else 'are'} undecided",
        PASSES: f"{words[PASSES]} {'passes' if words[PASSES] == 1 else 'pass'}",
    }
    return f"Of {counted(len(settings), 'setting')}, {', '.join(text for w, text in sentences.items() if words[w])}."


def _pair(settings: Sequence[Setting]) -> str:
    """Return the walked-back setting whose reporting pair looks best; without one, the smallest gain that passes."""
    known = [s for s in settings if s["gamma"]["mean"] is not None and s["d3"]["value"] is not None]
    fallen = [s for s in known if s["verdict"]["word"] == WALKED_BACK]
    if fallen:
        s = max(fallen, key=lambda s: (s["gamma"]["mean"] > 0.05, s["acc"]["mean"]))
        pp = number(abs(s["d3"]["value"]), "pp").lstrip("+")
        gain = f"lose {pp} pp against" if s["d3"]["value"] < 0 else f"gain only {pp} pp over"
        return (
            f"The pair that papers report does not show it: {s['rule']} ({s['setting']}) has accuracy "
            f"{s['acc']['mean']:.3f} and Γ {s['gamma']['mean']:+z.3f}, but its trained blocks {gain} frozen random "
            f"ones ({s['frozen']['mean']:.3f})."
        )
    if any(s["verdict"]["word"] == WALKED_BACK for s in settings):
        return "No walked-back setting has both Γ and a frozen control, so the reporting pair can't be held against it."
    tested = [s for s in settings if s["d3"]["value"] is not None]
    if not tested:
        return "No setting has a frozen control, so nothing here shows whether the trained depth is used."
    s = min(tested, key=lambda s: s["d3"]["value"])
    return f"The smallest gain over frozen blocks is {s['d3']['text']}, of {s['rule']} ({s['setting']})."


def _reasons(settings: Sequence[Setting]) -> str:
    fallen = [s for s in settings if s["verdict"]["word"] == WALKED_BACK]
    counts = {
        f"trained blocks gain less than {LIMITS.frozen_acc_margin_pp:g} pp over frozen ones": sum(
            "D3" in s["failed"] for s in fallen
        ),
        "the stream explodes and the BP gradient vanishes": sum(
            "D1" in s["failed"] and "D2" in s["failed"] for s in fallen
        ),
    }
    parts = [f"in {'all ' * (n == len(fallen))}{n}, {text}" for text, n in counts.items() if n]
    why = f"Of the {len(fallen)} walked back: {'; '.join(parts)}" if parts else "No check decides against a claim"
    if len(fallen) == 1:
        why = f"In the one walked back, {', and '.join(text for text, n in counts.items() if n)}"
    waiting = [s for s in settings if s["verdict"]["word"] == UNDECIDED]
    blind = sum(bool(s["verdict"]["qualifier"]) for s in waiting)
    rest = len(waiting) - blind
    asks = [f"{blind} of the undecided need{'s' * (blind == 1)} a frozen control"] if blind else []
    asks += [f"{rest} {'' if blind else 'of the undecided '}need{'s' * (rest == 1)} more seeds"] if rest else []
    return f"{why}{'; ' if asks else ''}{' and '.join(asks)}."


def beside_setting(word: str, over: str, seeds: int, failed: str) -> str:
    """Return why a seed on its own has another verdict than its setting; "" where they agree.

    Args:
        word: the seed's verdict.
        over: that of the setting.
        seeds: how many the setting has.
        failed: the checks that walk the setting back, or what is open.
    """
    if word == over:
        return ""
    text = f"This seed alone: {word}. All {seeds} seeds of its setting together: {over}"
    text += f" ({failed})" if failed else ""
    return (
        f"{text}. One seed is judged by the error of its own test samples; a setting by its mean, whose interval also "
        "holds the spread between seeds. The setting's verdict is the one to report."
    )
