"""The errors of D3-outcome are counted right, and the page shows those of the kept rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta
from torch import nn

import depth_records
import validate_depth as script
import walkback as wb
from made_runs import write_run
from places import ROOT
from walkback.calibration.rows import read_rows
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

RESULTS = ROOT / "results"


def made(known: float, low: float, high: float, source: str = "zoo", error: float = 0.5) -> dict[str, Any]:
    numbers = {"known_pp": known, "known_error_pp": error, "worth_pp": (low + high) / 2, "interval": [low, high]}
    return {"name": "", "source": source, "network": "resmlp", "trained": 0.5, "rerandomised": [0.4, 0.6], **numbers}


def test_answers_are_counted_against_what_is_known() -> None:
    rows = [
        made(0.0, -1.0, 1.0),  # unused, and said so
        made(0.0, 3.0, 5.0),  # unused, said used
        made(9.0, 8.0, 10.0),  # used, and said so
        made(9.0, -1.0, 1.0),  # used, said unused
        made(9.0, 1.0, 17.0),  # used, left open
        made(2.5, 1.9, 2.1),  # not known itself
        made(0.0, 3.0, 5.0, "untrained"),
    ]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.table(rows).splitlines()[2:5]]
    assert lines[0][1:8] == ["6", "1", "1", "1", "1", "1", "1"]
    low, high = beta.ppf(0.025, 1, 2), beta.ppf(0.975, 2, 1)
    assert lines[0][8] == lines[0][9] == f"0.50 [{low:.2f}, {high:.2f}]"
    off = np.array([0.0, 4.0, 0.0, -9.0, 0.0, -0.5])
    assert lines[0][10:] == [f"{off.mean():+.1f}", f"{np.sqrt((off**2).mean()):.1f}"]
    assert lines[1][:8] == ["resmlp", "1", "0", "1", "0", "0", "", ""]
    assert "1 of 1; 0 of them without the note" in script.table(rows)


def test_runs_with_both_checks_are_counted_where_both_decide(tmp_path: Path) -> None:
    for seed, (acc, worth) in enumerate([(0.50, 9.0), (0.50, -3.0), (0.50, 2.5), (0.30, -3.0)]):
        spec = RunSpec(rule="dfa", seed=seed, epochs=2)
        write_run(tmp_path, control_spec(spec), 0.35)
        path = write_run(tmp_path, spec, acc) / "report.json"
        sizes, parts = {"train": 100, "test": 100}, {"samples": 0.5, "draws": 0.0}
        kept = wb.Depth(worth, (worth - 1, worth + 1), 0.42 + worth / 100, (0.42, 0.42), {"trained": [0.4, 0.5]}, None,
                        None, None, sizes, parts, {"trained": [1e-4]})  # fmt: skip
        path.write_text(json.dumps({**json.loads(path.read_text()), "depth": kept.to_dict()}))
    text = depth_records.table(tmp_path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:6]]
    assert [row[3] for row in rows] == ["yes", "no", "", "yes"]
    assert rows[1][2] == "-3.0 [-4.0, -2.0] flags"
    assert rows[2][1].startswith("+15.0 [")
    assert "they agree in 2 of 3 runs" in text


def test_what_is_known_of_an_untouched_network_is_about_nothing() -> None:
    """Blocks that add nothing, in the network and in every draw: both readouts read the stem."""

    def build() -> nn.Module:
        net = wb.nets.build("student", (4,), 2, width=4, depth=1)
        with torch.no_grad():
            _ = [p.zero_() for p in net.blocks.parameters()]
        return net

    torch.manual_seed(0)
    x = torch.randn(300, 4)
    batches = [(x, (x[:, 0] > 0).long())]
    parts = [batches, batches, batches]
    net = build().eval()
    known, error = script.known_worth(net, script.random_blocks(net, build, parts, "", 2), parts)
    assert (known, error) == (0.0, 0.0)


def test_every_network_is_held_against_draws_of_its_own() -> None:
    """Draws that all rows shared made one lucky draw look like a bias of a whole family."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    batches = [(x, (x[:, 0] * x[:, 1] > 0).long())]
    parts = [batches, batches, batches]
    net = wb.nets.build("student", (4,), 2, width=8, depth=1).eval()

    def right(name: str) -> list[list[bool]]:
        build = lambda: wb.nets.build("student", (4,), 2, width=8, depth=1)  # noqa: E731
        return script.random_blocks(net, build, parts, name, 2).tolist()

    assert right("a") == right("a") != right("b")


def test_the_table_of_runs_is_that_of_the_records() -> None:
    text = (RESULTS / "depth-records.md").read_text(encoding="utf-8")
    assert text == f"# D3-outcome beside D3, on finished runs\n\n{depth_records.table(ROOT / 'evidence')}\n"


def test_the_table_is_that_of_the_kept_rows() -> None:
    rows = read_rows(RESULTS / "depth-cases.jsonl")
    text = (RESULTS / "depth-errors.md").read_text(encoding="utf-8")
    assert text == f"# Errors of D3-outcome\n\n{script.table(rows)}\n"
    assert {"zoo", "untrained", "trained"} <= {one["source"] for one in rows}
    assert {"Hugging Face ViT", "Hugging Face GPT-2", "resmlp", "vit-mini", "student", "small-cnn"} <= {
        one["network"] for one in rows
    }
