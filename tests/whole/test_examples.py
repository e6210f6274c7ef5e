"""The examples run and say what their first lines promise."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest

from places import ROOT

EXAMPLES = ROOT / "examples"


def test_two_networks_one_trusted_and_one_walked_back(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "two_networks.py"), run_name="__main__")
    verdicts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("VERDICT")]
    assert verdicts == ["VERDICT: passes", "VERDICT: walked back: D1, D2"]


def test_a_jax_users_log_is_walked_back_with_most_of_the_run_left(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "jax_csv.py"), run_name="__main__")
    out = capsys.readouterr().out
    columns = out.splitlines()[0].split(",")
    assert columns[:3] == ["epoch", "h_norm_0", "h_norm_1"]
    assert "VERDICT: walked back: D1, D2, D3" in out
    found = re.search(r"trust lost at epoch (\d+): (\d+) of 12 epochs were left", out)
    assert found is not None
    assert int(found[1]) + int(found[2]) == 12
    assert 1 < int(found[1]) < 12


def test_the_gradients_of_the_jax_example_are_those_of_its_loss() -> None:
    """Finite differences of the loss in every entry of one state, at every site."""
    example = runpy.run_path(str(EXAMPLES / "jax_csv.py"))
    width, depth, classes = (example[name] for name in ("WIDTH", "DEPTH", "CLASSES"))
    rng = np.random.default_rng(3)
    w = {
        "stem": rng.normal(size=(5, width)),
        "first": rng.normal(size=(depth, width, width)) / 6,
        "second": rng.normal(size=(depth, width, width)) / 6,
        "head": rng.normal(size=(width, classes)),
    }
    x, y = rng.normal(size=(2, 5)), np.array([1, 3])
    states, hidden, p = example["forward"](w, x)
    grads = example["gradients"](w, states, hidden, p - np.eye(classes)[y])

    def loss(site: int, h: np.ndarray) -> float:
        for level in range(site, depth):
            h = h + np.maximum(example["unit"](h) @ w["first"][level], 0.0) @ w["second"][level]
        logits = example["unit"](h) @ w["head"]
        return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(2), y]).sum())

    for site in range(depth + 1):
        for entry in range(width):
            step = np.zeros_like(states[site])
            step[1, entry] = 1e-6
            slope = (loss(site, states[site] + step) - loss(site, states[site] - step)) / 2e-6
            assert grads[site][1, entry] == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.filterwarnings("ignore:The `srun` command is available")
@pytest.mark.slow
def test_a_lightning_run_is_stopped_by_the_watch(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "lightning_stopped.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "D1 fired at" in out
    assert "D2 fired at" in out
    assert "VERDICT: walked back: D1, D2" in out
    found = re.search(r"trust lost at \w+ \d+: (\d+) of (\d+) \w+ were left", out)
    assert found is not None
    assert int(found[1]) > 0.8 * int(found[2])


@pytest.mark.slow
def test_own_rule_is_certified_and_walked_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as `python examples/own_rule.py` does: the spec names it as a module
    runpy.run_path(str(EXAMPLES / "own_rule.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "no hidden backpropagation found" in out
    assert "VERDICT: walked back: D1, D2, D3" in out


@pytest.mark.slow
def test_vit_with_a_random_feedback_head_is_audited(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "vit_random_feedback.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "Autograd's gradient as reference: Γ = 1.000\n  but the network's own backward pass is not" in out
    rows = [row.split() for row in out.splitlines() if row.endswith(("signal", "noise"))]
    cosines = [float(row[-3]) for row in rows]
    assert len(cosines) == 4
    assert max(cosines) < 0.95
    assert out.count("VERDICT: ") == 1
