"""Reads what was written before notes were data: `walkback.report/1`, and rows of its time.

There, facts stood in sentences. They are recovered here and nowhere else, by the sentences as they were written then,
pinned as literals: what the product says today may change, these may not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

SCHEMA = "walkback.report/1"

_ALTERED = "the network's own backward pass is not the derivative of its loss"
_HOW = re.compile(r" \(finite differences disagree by (\d+\.?\d*)%, limit (\d+\.?\d*)%; sites ([\d, ]+|all together)\)")
_UNCHECKED = "the forward pass has something that can alter its gradient, and this could not be checked"
_BP_ITSELF = "the credit is the BP gradient bit for bit at every site"
_NOT_FINITE = re.compile(r"(state|gradient) not finite\b(?: at site (\d{1,9}))?(?:, first in batch (\d{1,9}))?")
_STAGES = "the stream changes shape; growth is taken within stages"
# What judging says anew from the numbers.
_RENEWED = re.compile(
    "the headline accuracy|every ‖h‖ is the same|the credit (has|is against|is nearly) the direction"
    "|judged with other thresholds|seeds without spread|the frozen control is below chance"
    r"|the reference is under the floor|one site carries|the published D2 would|F\.cosine_similarity would"
)
_CAUSES = {
    "straddles": "inconclusive: ",
    "not-given": "not tested: ",
    "task": "BP itself gains only",
    "altered": "the reference is not the derivative of the loss: the network's own backward pass is altered",
    "partial": "at least: ",
}


def notes(advisories: object) -> dict[str, Any]:
    """Return the sentences of a report or row as {"notes", "nonfinite", "altered", "doubted"} of walkback.report/2."""
    parsed: dict[str, Any] = {"notes": [], "nonfinite": [], "altered": None, "doubted": None}
    for text in map(str, advisories if isinstance(advisories, (list, tuple)) else ()):
        if _NOT_FINITE.match(text):
            parsed["nonfinite"].append(nonfinite(text))
        elif text.startswith(_ALTERED):
            parsed["altered"] = _altered(text)
        elif text.startswith(_UNCHECKED):
            parsed["doubted"] = {"why": text.removeprefix(_UNCHECKED).removeprefix(": ")}
        elif text.startswith(_BP_ITSELF):
            parsed["notes"].append({"code": "bp-itself", "site": None, "values": {}})
        else:
            code = "said-anew" if _RENEWED.match(text) else "said"
            parsed["notes"].append({"code": code, "site": None, "values": {"text": text}})
    return parsed


def nonfinite(text: str) -> dict[str, Any]:
    """Return what a sentence says of a state or gradient that is not finite: {"kind", "site", "batch"}."""
    match = _NOT_FINITE.match(text)
    assert match is not None
    kind, site, batch = match.groups()
    return {"kind": kind, "site": None if site is None else int(site), "batch": None if batch is None else int(batch)}


def nonfinite_reasons(reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the same from the reasons of a training run's row, which has no advisories."""
    texts = [text for name in ("h_norm", "g_norm") if name in reasons for text in str(reasons[name]).split("; ")]
    return [nonfinite(text) for text in texts if _NOT_FINITE.match(text)]


def changes_shape(reasons: Mapping[str, str]) -> bool:
    """Return whether a row says that its stream changes shape, without saying where."""
    return reasons.get("growth_total") == _STAGES


def _altered(text: str) -> dict[str, Any]:
    how = _HOW.match(text, len(_ALTERED))
    if how is None:
        return {"error": None, "limit": None, "sites": []}
    error, limit, sites = how.groups()
    listed = [int(site) for site in re.findall(r"\d{1,9}", sites)]
    return {"error": float(error) / 100, "limit": float(limit) / 100, "sites": listed}


_NEEDED = {
    **dict.fromkeys(("findings", "advisories", "failed", "chain"), list[Any]),
    **dict.fromkeys(("values", "thresholds", "per_layer", "conditions", "reasons"), dict[str, Any]),
    **dict.fromkeys(("edition", "verdict"), str),
    **dict.fromkeys(("measurement_valid", "depth_used", "submode"), Any),
}
_MORE = ("method", "notes", "headline_acc", "frozen_baseline_acc", "bp_acc", "aggregates", "controls", "run")


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    schema_: str = Field(alias="schema")


def model(name: str, base: type[BaseModel], fields: dict[str, Any]) -> Any:
    """Return a model with fields by name: (type, default)."""
    return create_model(name, __base__=base, **fields)


# What a report/1 must have, and as what; it was checked more closely when it was written.
_FIELDS = {name: (kind, ...) for name, kind in _NEEDED.items()} | dict.fromkeys(_MORE, (Any, None))
Document = model("Document", _Exact, _FIELDS)


def as_report_2(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report/1 as report/2, but for `readings`. Its numbers, flags and failed checks are those of the file."""
    given = {k: v for k, v in data.items() if k != "advisories"}
    facts = notes(data["advisories"])
    remark = str(given.get("notes") or "")
    all_notes = [*([{"code": "remark", "site": None, "values": {"text": remark}}] if remark else []), *facts["notes"]]
    facts["notes"] = [{**note, "text": str(note["values"].get("text") or note["code"])} for note in all_notes]
    findings = [{**f, "cause": _cause(f)} if isinstance(f, Mapping) else f for f in given["findings"]]
    open_ = {"verdict": "undecided", "clamped_readable": None, "unclamped_exact": None}
    return {**given, **facts, "schema": "walkback.report/2", "findings": findings, **open_}


def _cause(finding: Mapping[str, Any]) -> str:
    reason = str(finding.get("reason") or "")
    if finding.get("flagged") is False or not reason:
        return ""
    cause = next((cause for cause, start in _CAUSES.items() if reason.startswith(start)), "")
    if cause or finding.get("flagged"):
        return cause or ("nonfinite" if _NOT_FINITE.match(reason) else "")
    return "not-given" if re.fullmatch("no .* (was|were) given", reason) else "not-measured"


def readings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the three words, and the two facts that `measurement_valid` was one word for, of a converted report."""
    findings = given["findings"]
    open_ = any(f.get("flagged") is None for f in findings if f.get("title") != "direction stability")
    broken = bool(given["nonfinite"] or given["altered"])
    values, limits = given["values"], given["thresholds"]
    deepest, error = values.get("g_norm_deepest"), values.get("cosine_error")
    floors = [f["limit"] for f in findings if f.get("title") == "reference validity"]  # with the dtype's own in it
    floor, limit = [*floors, limits.get("g_norm_floor", 1e-7)][0], limits.get("cosine_error_limit", 0.05)
    return {
        "verdict": "walked back" if given["failed"] else "undecided" if open_ else "passes",
        "clamped_readable": False if broken else None if deepest is None else deepest >= floor,
        "unclamped_exact": False if broken else None if error is None else error <= limit,
    }
