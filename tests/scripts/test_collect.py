"""Records are copied without weights, once, and a record that differs is left as it is."""

from __future__ import annotations

import json
from pathlib import Path

import collect
import walkback as wb


def test_finished_runs_are_copied_once_and_a_differing_record_is_left_alone(tmp_path: Path) -> None:
    spec = wb.RunSpec(rule="bp", data="teacher", net_options={"width": 4, "depth": 1}, epochs=1)
    store, out = tmp_path / "store", tmp_path / "out"
    name = wb.train(spec, store, quiet=True).path.name
    (store / "begun").mkdir()
    (store / "begun" / "spec.json").write_text("{}")

    assert collect.collect(store, out, "other kernels") == ([name], [])
    assert {file.name for file in (out / name).iterdir()} == {*collect.FILES}
    assert json.loads((out / name / "machine.json").read_text())["blas"] == "other kernels"
    assert (out / name / "report.json").read_bytes() == (store / name / "report.json").read_bytes()
    assert collect.collect(store, out, "other kernels") == ([], [])

    rows = out / name / "trajectory.jsonl"
    rows.write_text(rows.read_text().replace("1", "2"))
    before = rows.read_bytes()
    assert collect.collect(store, out, None) == ([], [name])
    assert rows.read_bytes() == before
