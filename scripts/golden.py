"""Write what this code says of records, of networks and on the command line: the tests hold later code to it.

    python scripts/golden.py            # writes tests/golden/*.json

- records.json: every record under results/, judged in every edition;
- measured.json: every number and note of constructed, shipped, honest and altered networks;
- cli.json: the help of every command, and what commands answer as JSON.

The files are made once and then only compared with: a number or a failed check that changes is a change of the
protocol. A file that exists is left alone unless it is named: `python scripts/golden.py cli.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
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


# -- networks ----------------------------------------------------------------------------------------------------------


def signs(trace: wb.Trace) -> list[Any]:
    """A credit that is neither exact nor random."""
    return [g.sign() for g in trace.grads]


# Differences that are nothing but rounding: another processor rounds otherwise.
ROUNDING = {
    *("cosine_error", "cosine_error_low", "cosine_error_high"),
    *("float64_disagreement", "float64_shift", "absorption", "backward_error"),
}


def networks() -> Iterator[tuple[str, Callable[[], wb.Report]]]:
    """(name, how it is measured) of networks with known answers, shipped ones, and honest and altered foreign ones."""
    few: list[Any] = [wb.Perturbation(count=4, samples=32), wb.Nudging(samples=32), "intrinsic"]
    batches = wb.selftest.batches(4)
    for case in wb.selftest.cases():
        for edition in EDITIONS:
            options = {"headline_acc": case.headline_acc, "frozen_baseline_acc": case.frozen_acc, "edition": edition}
            yield f"{case.name}, {edition}", lambda c=case, o=options: wb.diagnose(c.model, batches, **o)
        yield f"{case.name}, credit and probes", lambda c=case: wb.diagnose(c.model, batches, credit=signs, probes=few)
        yield f"{case.name}, shifted", lambda c=case: wb.diagnose(c.model, batches, credit=signs, pairing="shifted")
    for name, build in (("noisy", wb.selftest.noisy), ("absorbing", wb.selftest.absorbing)):
        yield name, lambda b=build: wb.diagnose(b(), batches, credit=signs, edition="intrinsic")
    sure, labelled = wb.selftest.confident()
    yield "confident", lambda: wb.diagnose(sure, labelled, credit=signs, edition="intrinsic")
    for case in wb.selftest.shipped_cases():
        probe = list(case.eval_batches or ())[:2]
        claim = {"headline_acc": case.headline_acc, "frozen_baseline_acc": case.frozen_acc}
        yield case.name, lambda c=case, p=probe, k=claim: wb.diagnose(c.model, p, credit=c.credit, **k)
    yield from foreign_networks()


def foreign_networks() -> Iterator[tuple[str, Callable[[], wb.Report]]]:
    """Networks of the tests: layers with a backward of their own, honest networks, altered ones."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import foreign
    import honest

    for kind in ("plain", "fa", "dfa"):
        net = foreign.made(kind)
        yield f"{kind} layers", lambda n=net: wb.diagnose(n, foreign.example(), reference="derived")
        yield f"{kind} layers, recorded", lambda n=net: wb.diagnose(n, foreign.example(), credit=wb.recorded(n))
    x, y = honest.digits()
    batches = list(zip(x.split(64), y.split(64)))[:2]
    for name in honest.BUILDS:
        net = honest.initial(name)
        yield f"honest {name}", lambda n=net: wb.diagnose(n, batches, credit=signs)
    for name, alter in honest.ALTERATIONS.items():
        net = honest.initial("residual gelu")
        alter(net)
        yield f"altered by {name}", lambda n=net: wb.diagnose(n, batches, credit=signs)


# Networks whose numbers are what rounding leaves, which differs between processors: their codes are compared.
OF_ROUNDING = ("absorbing", "trained by EP")


def said(measure: Callable[[], wb.Report], network: str = "") -> dict[str, Any]:
    """What a report holds in numbers and codes, or the kind of its error."""
    try:
        report = json.loads(measure().to_json())
    except wb.WalkbackError as error:
        return {"error": type(error).__name__}
    kept = ("verdict", "failed", "clamped_readable", "unclamped_exact", "depth_used", "submode", "nonfinite")
    found = {name: report[name] for name in (*kept, "values", "per_layer", "aggregates", "controls", "reasons")}
    for held in (found["values"], found["per_layer"]):
        for name in ROUNDING & held.keys():
            del held[name]
    if network in OF_ROUNDING:
        found = {key: found[key] for key in ("verdict", "failed", "depth_used", "nonfinite")}
    elif "dominated" in network:  # their gradients are so small that the changes of a loss are rounded
        found["controls"] = {}
        found["per_layer"].pop("perturbation", None)
    found["altered"], found["doubted"] = bool(report["altered"]), bool(report["doubted"])
    found["notes"] = sorted([note["code"], note["site"]] for note in report["notes"] if note["code"])
    return found


# -- the command line --------------------------------------------------------------------------------------------------

COMMANDS = (
    *(["--help"], ["anatomy", "--help"], ["audit", "--help"], ["calibrate", "--help"], ["demo", "--help"]),
    *(["diagnose", "--help"], ["doctor", "--help"], ["evidence", "--help"], ["judge", "--help"], ["lint", "--help"]),
    *(["pitfalls", "--help"], ["report", "--help"], ["train", "--help"]),
    # Not EP: its credit is a difference of states, and what rounding leaves of that differs between processors.
    *(["diagnose", f"src/walkback/bundles/{rule}", "--json"] for rule in ("bp", "dfa")),
    *(["judge", f"src/walkback/bundles/{rule}/trajectory.jsonl", "--json"] for rule in ("bp", "dfa", "ep")),
    ["anatomy", "walkback.selftest:healthy", "--json"],
)


def answered(words: list[str]) -> dict[str, Any]:
    """Exit code and output of a command, as JSON where it is that."""
    from walkback.cli import main

    out = io.StringIO()
    code: Any = 0
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    text = out.getvalue()
    with contextlib.suppress(ValueError):
        return {"code": code, "json": json.loads(text)}
    return {"code": code, "text": text}


MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "records.json": golden,
    "measured.json": lambda: {name: said(measure, name) for name, measure in networks()},
    "cli.json": lambda: {" ".join(words): answered(list(words)) for words in COMMANDS},
}

if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    for name, make in MADE.items():
        if name in sys.argv[1:] or not (GOLDEN.parent / name).exists():
            rows = (f"{json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}" for key, one in make().items())
            (GOLDEN.parent / name).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
