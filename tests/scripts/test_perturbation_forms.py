"""ρ_pert by step and precision, on a network whose answer is known."""

from __future__ import annotations

import runpy

import pytest
import torch

from places import ROOT
from walkback.nets import ResMLP


@pytest.fixture(scope="module")
def forms() -> dict:
    return runpy.run_path(str(ROOT / "scripts/perturbation_forms.py"))


def at_site(forms: dict, scale: float) -> dict[str, float]:
    """Return the forms for the gradient of a network whose states are `scale` times as long, at its last site."""
    torch.manual_seed(0)
    net = ResMLP((6,), 4, width=64, depth=1).eval()
    twice = ResMLP((6,), 4, width=64, depth=1).double().eval()
    twice.load_state_dict(net.state_dict())
    h, y = scale * torch.randn(32, 64), torch.randint(4, (32,))
    top = h.double().requires_grad_()
    losses = torch.nn.functional.cross_entropy(twice.out_head(twice.out_ln(top)), y, reduction="sum")
    (g,) = torch.autograd.grad(losses, top)
    v = torch.nn.functional.normalize(torch.randn(64, *h.shape, dtype=torch.float64), dim=-1)
    return forms["one_site"]({"float32": net, "float64": twice}, 1, h, g, g, y, v)


def test_the_gradient_predicts_a_small_step_and_float32_loses_one_that_is_short_beside_the_state(forms) -> None:
    near, far = at_site(forms, 1.0), at_site(forms, 1e4)
    assert near["cosine"] == far["cosine"] == pytest.approx(1)
    for found in (near, far):
        assert found["0.001 ‖h‖, float64, per sample"] == pytest.approx(1, abs=1e-4)
        assert found["0.0016, float64, per sample"] == pytest.approx(1, abs=1e-3)
    assert near["0.0016, float32, per sample"] > 0.95
    assert far["0.0016, float32, per sample"] < 0.2


def test_the_correlation_is_that_of_numpy(forms) -> None:
    u, w = torch.randn(2, 50, dtype=torch.float64)
    assert float(forms["correlation"](u, w, 0)) == pytest.approx(torch.corrcoef(torch.stack([u, w]))[0, 1].item())


def test_the_table_holds_what_the_page_on_replication_says_of_it() -> None:
    lines = (ROOT / "evidence/perturbation-forms.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    values = {name: [float(v) for v in row] for name, *row in cells[2:]}
    bp, dfa, _ = values["0.0016, float32, per sample"]
    assert dfa / values["cosine"][1] == pytest.approx(0.5, abs=0.03), "half the cosine of DFA"
    assert bp == pytest.approx(0.99, abs=0.005)
    assert values["0.0016, float64, per sample"][1] == pytest.approx(values["cosine"][1], abs=0.01)
