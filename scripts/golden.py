"""Write what every record under results/ is judged to be, in every edition: the tests hold later code to it.

    python scripts/golden.py            # writes tests/golden/records.json

The file is made once and then only compared with: a number or a failed check that changes is a change of the protocol.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import walkback as wb

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "records.json"
EDITIONS = ("three-check", "four-diagnostic", "intrinsic")
FROZEN = (None, 0.35)  # the control's accuracy: not given, and the published one


def records() -> list[Path]:
    """Every report under results/, and reports of constructed networks as walkback.report/1, in one order."""
    results = ROOT / "results"
    kept = [p for p in results.rglob("report.json") if not p.relative_to(results).parts[0].startswith("as-published")]
    saved = (ROOT / "tests" / "golden" / "report-1").glob("*.json")
    return sorted([*kept, *(results / "intrinsic").glob("*.json"), *saved])


def judged(path: Path, edition: str, frozen: float | None) -> dict[str, Any]:
    """What a record is judged to be: failed checks, flags and numbers, without a word."""
    seeds = json.loads(path.read_text(encoding="utf-8"))["headline_acc"]
    several = frozen is not None and isinstance(seeds, list)
    report = wb.judge(path, edition=edition, frozen_baseline_acc=[frozen] * len(seeds) if several else frozen)
    return {
        "failed": list(report.failed),
        "flagged": {f["check"]: f["flagged"] for f in report.findings},
        "values": {f["check"]: f["value"] for f in report.findings},
        "limits": {f["check"]: f["limit"] for f in report.findings},
        "measurement_valid": report.measurement_valid,
        "depth_used": report.depth_used,
        "submode": report.submode,
    }


def golden() -> dict[str, Any]:
    """{record: {edition and control: what it is judged to be}}."""
    return {
        str(path.relative_to(ROOT)): {
            f"{edition}, frozen {frozen}": judged(path, edition, frozen) for edition in EDITIONS for frozen in FROZEN
        }
        for path in records()
    }


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    rows = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in golden().items())
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
