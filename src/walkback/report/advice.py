"""Why a verdict is what it is, in one sentence, and what to do next about every finding. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from walkback.report import depth_view as dv
from walkback.report.numbers import figure
from walkback.verdict.findings import about

if TYPE_CHECKING:
    from walkback.report.report import Report

GROWTH, VALIDITY, PRECISION, UTILITY, OUTCOME = "growth", "reference", "precision", "depth", "outcome"


def _kind(report: Report, f: Mapping[str, Any]) -> str:
    """Return what a finding is about; the intrinsic edition asks of the reference how exact its cosine is."""
    kind = about(f)
    return PRECISION if kind == VALIDITY and report.edition == "intrinsic" else kind


def reason(report: Report) -> str:
    """Return the sentence under the verdict: what fails, or what was tested and does not.

    >>> import walkback as wb
    >>> print(reason(wb.judge({"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}}, method_name="DFA")))
    DFA: one block multiplies the stream by 222 (limit 50), and ‖g_L‖ = 4.00e-09 is under the floor of 1e-07.
    """
    name = f"{report.method}: " if report.method else ""
    findings = [f for f in dv.deciding(report) if f["check"] in report.failed]
    if findings:
        return f"{name}{_listed([_why(report, f) for f in findings])}."
    tested = [_value(report, f) for f in dv.deciding(report) if f["flagged"] is not None]
    if report.verdict == "passes":
        return f"{name}every check was tested, and none walks the claim back: {', '.join(tested)}."
    known = f": {', '.join(tested)}" if tested else ""
    return f"{name}{'nothing that was tested fails' if tested else 'nothing was tested'}{known}."


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}"


def _why(report: Report, f: Mapping[str, Any]) -> str:
    """Return why a check fails, in words that need no table."""
    value, limit, kind = f["value"], f["limit"], _kind(report, f)
    if f["cause"] in ("nonfinite", "altered"):
        return f["reason"]
    if kind == GROWTH:
        least = "at least " if f["cause"] == "partial" else ""
        return f"one block multiplies the stream by {least}{figure(value)} (limit {limit:g})"
    if kind == VALIDITY:
        return f"‖g_L‖ = {figure(value)} is under the floor of {limit:.3g}"
    if kind == PRECISION:
        return f"rounding puts a cosine off by {figure(value)} (limit {limit:g})"
    if kind == UTILITY and value < 0:
        return f"frozen blocks are {-value:z.1f} pp better than trained ones"
    over = "frozen ones" if kind == UTILITY else "random draws of them"
    return f"trained blocks gain {value:+z.1f} pp over {over}, less than {limit:g} pp"


def _value(report: Report, f: Mapping[str, Any]) -> str:
    """Return what a check measured, with its name in words."""
    kind = _kind(report, f)
    if f["value"] is None:
        return f["reason"]
    if kind == GROWTH:
        return f"growth {figure(f['value'])}x"
    if kind in (VALIDITY, PRECISION):
        return f"‖g_L‖ {figure(f['value'])}" if kind == VALIDITY else f"cosines off by {figure(f['value'])}"
    return f"{f['value']:+z.1f} pp over {'frozen blocks' if kind == UTILITY else 'random draws of the blocks'}"


def next_steps(report: Report) -> list[tuple[str, str]]:
    """Return (check, what to do next) for every check that flags or was not decided; [] where there is nothing to do.

    >>> import walkback as wb
    >>> next_steps(wb.judge({"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}}))[0][0]
    'D3'
    """
    open_ = [f for f in report.findings if f["flagged"] is not False and about(f) != "stability"]
    steps = [(f["check"], _next(report, f)) for f in open_ if not (f.get("beside") and f["cause"] == "not-given")]
    if not any(f["cause"] == "altered" for f in open_) and report.doubted:
        steps.append(("reference", _DERIVE))
    return steps


_DERIVE = (
    'where the backward pass is your own, give it as the credit: credit=wb.recorded(model); with reference="derived" '
    "the true gradient comes from the forward pass alone"
)
_CONTROL = (
    "train the frozen control (walkback train --scope frozen with the options of the run, or wb.frozen_baseline(build, "
    "train) for code of your own) and give its accuracy (frozen_baseline_acc=…, or --frozen-acc); without a control: "
    "wb.depth(model, train, test), or --depth on a run"
)
_DECIDES = {
    (GROWTH, "not-given"): "log the norm of every site: h_norm_0 … h_norm_L (wb.Watch does)",
    (VALIDITY, "not-given"): "log the gradient norm of the last site: g_norm_deepest (wb.Watch does)",
    (PRECISION, "not-measured"): 'measure with probes=("intrinsic",), or --edition intrinsic on the network',
    (UTILITY, "not-given"): _CONTROL,
}
_FLAGGED = {
    GROWTH: "train once more with a penalty on what blocks write (walkback train --penalty 0.01) and compare; report "
    "the growth beside Γ",
    VALIDITY: 'report no Γ of this network; ask float64 whether the cosine is wrong or only small (probes=("intrinsic",'
    "), or --edition intrinsic), and read an earlier epoch",
    PRECISION: "report no Γ of this network: measure a copy in float64 (net.double()), or read an earlier epoch",
    UTILITY: "report the frozen control beside the accuracy, and claim nothing for the trained blocks; what they are "
    "worth under their own stem: wb.depth(model, train, test), or --depth on a run",
    OUTCOME: "claim nothing for the trained blocks; beside it the trained control: walkback train --scope frozen "
    "with the options of the run",
}


def _next(report: Report, f: Mapping[str, Any]) -> str:
    cause = f["cause"]
    if cause == "altered":
        return _DERIVE
    if cause == "nonfinite":
        return "find the first epoch with a number that is not finite (wb.Watch logs them), and judge the one before"
    if cause == "straddles":
        return _more(f)
    if cause == "task":
        return "choose a task or a network on which BP beats frozen blocks: this one can't show what depth is worth"
    if f["flagged"]:
        return _FLAGGED[_kind(report, f)]
    return _DECIDES.get((_kind(report, f), cause), f"measure it: {f['reason']}")


def _more(f: Mapping[str, Any]) -> str:
    """Return how many more seeds or samples would decide, and how they are given."""
    more = f.get("more") or {}
    words = [f"{count:,} more {what if count > 1 else what[:-1]}" for what, count in more.items()]
    if not words:
        how = ": wb.depth(…, draws=…)" if about(f) == OUTCOME else ""
        return f"report it with its interval and claim neither: more of one kind alone would not decide it{how}"
    how = " (walkback train --seed …, then give one accuracy per seed)" if "seeds" in more else ""
    return f"{' or '.join(words)} would decide it at this spread{how}"
