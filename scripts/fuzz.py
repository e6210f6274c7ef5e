"""Damaged files for every reader and renderer: `python scripts/fuzz.py --count 20000`.

An input is told by its target and number: the same ones are drawn again, and `--only judge:17` runs one of them. What
a reader does not like is a WalkbackError, by name; anything else, more than 5 seconds of the process, or more than
1 GiB is a failure.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "helpers"))

import walkback as wb  # noqa: E402
from made_runs import EXPLODED, HEALTHY, row, write_run  # noqa: E402  # pyright: ignore[reportMissingImports]
from walkback.errors import WalkbackError  # noqa: E402
from walkback.training.spec import RunSpec, control_spec  # noqa: E402

SECONDS, BYTES = 5.0, 2**30

# -- what is put in ------------------------------------------------------------------------------------------------

DEEP: Any = 0.5
for _ in range(150):
    DEEP = [DEEP]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.5, 1e-9, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, 10**30, 10**400, -(10**30), "", " ", "nan", "Infinity", "0.5", "=1+1", "<script>x</script>"),
    *("\x1b[31m\x07", "\ud800", "\u202e", "a\nb\r\nc", "x" * 5000, "../../etc/passwd", "\\input{/etc/passwd}", "%s{}"),
    *([], {}, [None], [[]], [{}], {"": None}, [0.5] * 4000, [1.0, "x"], {"a": {"b": [1]}}, DEEP, "os:system"),
]


def mutated(value: Any, draw: random.Random) -> Any:
    """Return plain values with one to three places changed: another value, gone, doubled, renamed, exchanged."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return copy.deepcopy(draw.choice(VALUES))
        of, key = draw.choice(places)
        match draw.randrange(8):
            case 0:
                del of[key]
            case 1 if isinstance(of, list):
                of.insert(key, copy.deepcopy(draw.choice(VALUES)))
            case 1:
                of[draw.choice(["", "schema", "h_norm_99999999", "__class__", "per_layer", "x\x1b", key.upper()])] = of[
                    key
                ]
            case 2:
                other, there = draw.choice(places)
                if there in range(len(other)) or there in other:
                    of[key] = json.loads(json.dumps(other[there]))
            case 3 if isinstance(of[key], (int, float)):
                of[key] = draw.choice((-of[key], of[key] * 1e6, of[key] * 1e-6, str(of[key]), [of[key]]))
            case _:
                of[key] = copy.deepcopy(draw.choice(VALUES))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in list(keys)[:200]:
        yield value, key
        yield from _places(value[key])


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode()


def broken(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with a few flipped, cut out, doubled or put in."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + draw.randrange(1, 20)]
            case 3:
                out[at:at] = out[at : at + draw.randrange(1, 200)]
            case 4:
                out[at:at] = draw.choice(
                    (b"\0", b"\xff", b"\n", b'"', b"[" * 900, b"9" * 400, b",", b"{", b"1e999", b"NaN")
                )
            case _:
                out[at : at + 8] = draw.randbytes(8)
    return bytes(out)


def damaged(value: Any, draw: random.Random) -> bytes:
    """Return a JSON file: its values changed, its bytes, or both."""
    data = text_of(mutated(value, draw) if draw.random() < 0.75 else value)
    return broken(data, draw) if draw.random() < 0.35 else data


# -- targets: (number, folder to write in, random numbers) -----------------------------------------------------------


def rendered(report: wb.Report) -> None:
    """Write a report in every form."""
    from walkback.report.gate import gate, junit
    from walkback.report.model_card import section

    str(report), report.to_markdown(), report.to_latex(), report.to_html(), junit(report), gate(report)
    for finding in report.findings:
        junit(report, [finding["check"]]), gate(report, [finding["check"]])
    section(report)
    assert wb.Report.from_dict(json.loads(report.to_json())).to_json() == report.to_json()


def judge(folder: Path, draw: random.Random) -> None:
    rows = [row(epoch, 0.5, **draw.choice((HEALTHY, EXPLODED))) for epoch in range(1, draw.choice((2, 4)))]
    kind = draw.choice(("json", "jsonl", "csv"))
    path = folder / f"log.{kind}"
    if kind == "csv":
        flat = [{"epoch": r["epoch"], "test_acc": 0.5, **_flat(r)} for r in rows]
        cells = [list(flat[0]), *([repr(v) for v in one.values()] for one in flat)]
        cells = mutated(cells, draw)
        lines = [",".join(map(str, line)) if isinstance(line, list) else str(line) for line in cells] if cells else []
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
        path.write_bytes(broken(data, draw) if draw.random() < 0.4 else data)
    elif kind == "json":
        path.write_bytes(damaged(draw.choice((rows, rows[0], _flat(rows[0]))), draw))
    else:
        path.write_bytes(b"\n".join(damaged(one, draw) if i == 0 else text_of(one) for i, one in enumerate(rows)))
    rendered(wb.judge(path, edition=draw.choice((None, "four-diagnostic", "intrinsic"))))


def _flat(one: dict[str, Any]) -> dict[str, Any]:
    lists = {f"{k}_{i}": v for k, values in one["per_layer"].items() for i, v in enumerate(values)}
    return {**lists, **one["values"], "g_norm_batch_size": 128, "frozen_acc": 0.4}


def report(folder: Path, draw: random.Random) -> None:
    path = folder / "report.json"
    path.write_bytes(damaged(draw.choice(_base()["reports"]), draw))
    found = wb.Report.load(path)
    rendered(found)
    rendered(wb.judge(path))


def record(folder: Path, draw: random.Random) -> None:
    from walkback.audit.records import read_records
    from walkback.audit.store import checked_runs
    from walkback.replication.page import page_data, render
    from walkback.replication.tables import TABLES, evidence
    from walkback.replication.template import filled

    store = folder / "store"
    if not store.exists():
        shutil.copytree(_base()["store"], store)
    files = sorted(path for path in store.rglob("*") if path.is_file())
    path = draw.choice(files)
    before = path.read_bytes()
    try:
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in before.splitlines()]
            path.write_bytes(b"\n".join(text_of(line) for line in _listed(mutated(lines, draw))))
        else:
            path.write_bytes(damaged(json.loads(before), draw))
        records = read_records(store)
        checked_runs(store)
        assert len(records) >= 4, "a damaged record took others with it"
        render(page_data(records))
        if draw.random() < 0.2:
            filled(records)
            for name in draw.sample(list(TABLES), 3):
                table = evidence(name, records)
                str(table), table.to_markdown(), table.to_latex(), table.to_csv(), json.dumps(table.to_dict())
    finally:
        path.write_bytes(before)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def bundle(folder: Path, draw: random.Random) -> None:
    name = draw.choice(("bp", "dfa", "ep"))
    source = Path(wb.selftest.BUNDLES) / name
    for file in source.iterdir():
        shutil.copy(file, folder / file.name)
    (folder / "sums.json").unlink(missing_ok=True)  # which would refuse every change
    path = folder / draw.choice(("spec.json", "spec.json", "weights.safetensors", "trajectory.jsonl"))
    data = path.read_bytes() if path.exists() else b""
    path.write_bytes(damaged(json.loads(data), draw) if path.name == "spec.json" else broken(data, draw))
    found = wb.load_bundle(folder)
    found.trajectory(), found.report()
    found.rule(found.model())


def plan(folder: Path, draw: random.Random) -> None:
    grid = ("[[grid]]", 'rule = ["bp", "dfa"]', "seed = [1, 2]", "epochs = 3", "[grid.net_options]", "width = [8]")
    lines = ['about = "t"', "controls = true", *grid]
    for _ in range(draw.choice((0, 1, 1, 2))):
        at = draw.randrange(len(lines))
        value = draw.choice(VALUES)
        written = json.dumps(value).replace("null", "{}").replace("Infinity", "inf").replace("NaN", "nan")
        lines[at] = f"{lines[at].partition(' = ')[0]} = {written}"
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    (folder / "plan.toml").write_bytes(broken(data, draw) if draw.random() < 0.4 else data)
    str(wb.audit.plan(folder / "plan.toml"))


def thresholds(folder: Path, draw: random.Random) -> None:
    from dataclasses import asdict

    limits: Any = wb.DiagnosticThresholds()
    (folder / "t.json").write_bytes(damaged(asdict(limits), draw))
    found = wb.DiagnosticThresholds.load(folder / "t.json")
    rendered(wb.judge({"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0]}, thresholds=found))


def lint(folder: Path, draw: random.Random) -> None:
    from walkback.lint import lint as linted
    from walkback.lint.forms import github, sarif

    text = draw.choice(_base()["scripts"])
    if draw.random() < 0.3:
        cells = [{"cell_type": "code", "source": part} for part in text.decode().split("\n\n")]
        path, data = folder / "x.ipynb", damaged({"cells": cells, "nbformat": 4, "metadata": {}}, draw)
    else:
        lines = text.split(b"\n")
        for _ in range(draw.choice((0, 1, 3))):  # a script that parses, more often than one that doesn't
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
        path, data = folder / "x.py", b"\n".join(lines)
        data = broken(data, draw) if draw.random() < 0.5 else data
    path.write_bytes(data)
    found = linted(path)
    str(found), sarif(found), github(found)


def entry(folder: Path, draw: random.Random) -> None:
    from walkback.replication import public_record

    (folder / "mine.json").write_bytes(damaged(draw.choice(_base()["entries"]), draw))
    found = public_record.read_public_record(folder)
    str(found), public_record.page(found), json.dumps(found.to_dict())


def pickle(folder: Path, draw: random.Random) -> None:
    import pickle as unsafe

    import numpy as np

    from walkback.data.pickled import read_arrays

    batch = {b"data": np.zeros((4, 12), np.uint8), b"labels": [0, 1, 2, 3]}
    (folder / "batch").write_bytes(broken(unsafe.dumps(batch, protocol=draw.choice((2, 4))), draw))
    read_arrays(folder / "batch")


def history(folder: Path, draw: random.Random) -> None:
    from walkback.training.watch.history import History, reopen, scalars

    data = b"\n".join(map(text_of, _listed(mutated(_base()["watched"], draw))))
    (folder / "h.jsonl").write_bytes(broken(data, draw) if draw.random() < 0.5 else data)
    rows, _ = reopen(folder / "h.jsonl")
    str(History(rows)), [scalars(row) for row in rows]
    rendered(wb.judge(folder / "h.jsonl"))


def depth(folder: Path, draw: random.Random) -> None:
    """Reports with what blocks are worth, over seeds too, and all that the intrinsic edition has."""
    from walkback.measures.worth import Depth

    probes = {"trained": [0.4, 0.5], "re-randomised": [0.4, 0.45]}
    found = Depth(6.4, (5.0, 7.8), 0.5, (0.44, 0.43), probes, [0.45], 0.4, 0.3, {"train": 100, "test": 100},
                  {"samples": 0.5, "draws": 0.4}, {"trained": [1e-4], "re-randomised": [1e-4, 1e-3]})  # fmt: skip
    edition = draw.choice(("three-check", "intrinsic"))
    claimed: Any = {"headline_acc": [0.5, 0.6], "frozen_baseline_acc": [0.4, 0.4]} if draw.random() < 0.5 else {}
    base = wb.judge({**_base()["reports"][0]}, edition=edition, depth=None if claimed else found, **claimed)
    path = folder / "report.json"
    path.write_bytes(damaged(base.to_dict(), draw))
    for report in (wb.Report.load(path), wb.judge(path)):
        rendered(report)


def paper(folder: Path, draw: random.Random) -> None:
    """Tables of papers: a row per method."""
    from walkback.report.paper import judge_paper, methods_of

    head = ["method", "accuracy", "gamma", "h_norm_first", "h_norm_last", "g_norm_last"]
    cells: Any = [head, *([name, 0.5, 0.1, 1.0, 2.0, 1e-3] for name in ("DFA", "FA", "frozen"))]
    path = folder / draw.choice(("t.csv", "t.json"))
    if path.suffix == ".csv":
        lines = [",".join(map(str, _listed(line))) for line in _listed(mutated(cells, draw))]
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
        path.write_bytes(broken(data, draw) if draw.random() < 0.4 else data)
    else:
        path.write_bytes(damaged([dict(zip(head, line)) for line in cells[1:]], draw))
    if methods_of(path):
        found = judge_paper(path)
        str(found), json.dumps(found.to_dict())


TARGETS: dict[str, tuple[Callable[[Path, random.Random], None], int]] = {  # with their share of the inputs
    "judge": (judge, 30),
    "report": (report, 20),
    "record": (record, 8),
    "bundle": (bundle, 4),
    "plan": (plan, 4),
    "thresholds": (thresholds, 3),
    "lint": (lint, 8),
    "entry": (entry, 4),
    "pickle": (pickle, 4),
    "history": (history, 5),
    "depth": (depth, 6),
    "paper": (paper, 4),
}
_BASE: dict[str, Any] = {}


def _base() -> dict[str, Any]:
    """What inputs are made of, made once."""
    if not _BASE:
        store = Path(tempfile.mkdtemp(prefix="walkback-fuzz-base-"))
        for rule, last in (("bp", HEALTHY), ("dfa", EXPLODED)):
            for spec in (RunSpec(rule=rule, epochs=2, seed=0), RunSpec(rule=rule, epochs=2, seed=1)):
                write_run(store, spec, 0.5, **last)
        write_run(store, control_spec(RunSpec(rule="dfa", epochs=2, seed=0)), 0.45, **HEALTHY)
        found = [json.loads((path / "report.json").read_bytes()) for path in sorted(store.iterdir())]
        shipped = [json.loads(path.read_bytes()) for path in sorted(Path(wb.selftest.BUNDLES).rglob("report.json"))]
        scripts = [path.read_bytes() for path in sorted((ROOT / "examples").glob("*.py"))[:6]]
        scripts += [path.read_bytes() for path in sorted((ROOT / "src/walkback/pitfalls").glob("p*.py"))[:4]]
        entries = [json.loads(path.read_bytes()) for path in sorted((ROOT / "registry").glob("*.json"))[:2]]
        watch = wb.Watch(wb.selftest.healthy(), wb.selftest.batches(1), every=1)
        watched = [watch.step() for _ in range(3)]
        _BASE.update(store=store, watched=watched, reports=[*found[:2], *shipped], scripts=scripts, entries=entries)
    return _BASE


# -- running ---------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """More than SECONDS of this process's time."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise TooLong after SECONDS, and MemoryError over BYTES more than there are now."""

    def stop(*_: object) -> None:
        raise TooLong

    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages + BYTES, limits[1]))
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def one(target: str, number: int, folder: Path) -> str:
    """Run one input; return "read", "refused" or "failed: why"."""
    (place := folder / target).mkdir(exist_ok=True)
    try:
        with limited(), redirect_stderr(StringIO()):
            TARGETS[target][0](place, random.Random(f"{target}:{number}"))
    except WalkbackError as error:
        text = str(error)
        odd = "an error with control characters" if any(ord(c) < 32 and c != "\n" for c in text) else ""
        return f"failed: {odd}: {text!r}" if odd else "refused"
    except (Exception, TooLong, RecursionError) as error:
        if "--trace" in sys.argv:
            raise
        return f"failed: {type(error).__name__}: {str(error)[:300]}"
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="inputs in all")
    parser.add_argument("--first", type=int, default=0, help="number of the first input of each target")
    parser.add_argument("--target", choices=TARGETS, help="of this target alone")
    parser.add_argument("--only", help="one input, as judge:17")
    parser.add_argument("--trace", action="store_true", help="stop at the first failure, with its traceback")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="walkback-fuzz-"))
    _base()
    if given.only:
        target, _, number = given.only.partition(":")
        print(one(target, int(number), folder), "in", folder)
        return 0
    chosen = [given.target] if given.target else list(TARGETS)
    shares = sum(TARGETS[name][1] for name in chosen)
    failures, longest, began = 0, (0.0, ""), time.monotonic()
    for name in chosen:
        counts: dict[str, int] = {}
        for number in range(given.first, given.first + round(given.count * TARGETS[name][1] / shares)):
            start = time.process_time()
            said = one(name, number, folder)
            longest = max(longest, (time.process_time() - start, f"{name}:{number}"))
            counts[said.partition(":")[0]] = counts.get(said.partition(":")[0], 0) + 1
            if said.startswith("failed"):
                failures += 1
                print(f"{name}:{number} {said}", flush=True)
        print(f"{name}: {', '.join(f'{n} {word}' for word, n in sorted(counts.items()))}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{failures} failures; longest {longest[0]:.1f} s ({longest[1]}); peak {peak:.0f} MiB; ", end="")
    print(f"{time.monotonic() - began:.0f} s")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(_BASE["store"], ignore_errors=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
