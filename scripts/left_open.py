"""What the documents leave open about DFA's recipe, one thing at a time: nine runs of four epochs on CIFAR-10.

    python scripts/left_open.py --root DIR

Writes results/left-open.md, which docs/default-recipe.md includes. About ten minutes on one core; runs are kept in
runs/left-open, so it resumes.
"""

from __future__ import annotations

from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

import walkback as wb
from feedback_draws import ROOT, set_up, spec
from walkback.nets.resmlp import ResMLP
from walkback.replication.published import FIGURES
from walkback.training.loop import probe_batches

HERE = "left_open"
READ = {"credit_site": "reader"}
UNIT = {"rule_options": {"unit": True}}
RUNS: dict[str, dict[str, Any]] = {
    "ours, plain": {},
    "flips and crops": {"augment": True},
    "expansion 4": {"net_options": {"expansion": 4}},
    "ReLU": {"net": f"{HERE}:with_relu"},
    "initial weights after He": {"net": f"{HERE}:after_he"},
    "a block gets the credit of the site it reads": READ,
    "credit of unit length": UNIT,
    "credit of the site it reads, of unit length": {**READ, **UNIT},
    "the same, flips and crops": {**READ, **UNIT, "augment": True},
}


def with_relu(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The primary network with ReLU in its blocks."""
    net = ResMLP(input_shape, classes)
    for block in net.blocks:
        block.act = nn.ReLU()
    return net


def after_he(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The primary network with all weights of standard deviation √(2/fan-in) and no biases: 2.4 times torch's own."""
    net = ResMLP(input_shape, classes)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return net


def row(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """A line of the table from a run's trajectory."""
    first, last = rows[0]["per_layer"]["cosine"], rows[-1]["per_layer"]
    gradients = [f"{r['per_layer']['g_norm'][-1]:.1e}" for r in rows]
    deep = f"{min(first[1:]):+.2f}…{max(first[1:]):+.2f}"
    growth = f"{rows[-1]['values']['growth']:.1f}"
    accuracy = f"{rows[-1]['test_acc']:.3f}"
    return [name, *gradients, f"{first[0]:+.2f}", deep, f"{last['h_norm'][-1]:.1e}", growth, accuracy]


def published() -> list[str]:
    """The same of the documents, ‖g‖ converted to batches of 128."""
    early = [f for f in FIGURES if f.where == "early-epochs"]
    gradients = [
        " or ".join(f"{f.number:.1e}" for f in early if f.what == "g_norm" and f.epoch == epoch)
        for epoch in range(1, 5)
    ]
    known = [[f.value for f in early if f.what == f"cosine.{part}"] for part in ("first", "range")]
    each = [[end for value in values for end in (value if isinstance(value, tuple) else (value,))] for values in known]
    told = [f"{min(ends):+.2f}…{max(ends):+.2f}" for ends in each]  # ends are numbers: of cosines nothing else is told
    return ["published", *gradients, *told, "–", "–", "–"]


def of_mean_loss(net: nn.Module, x: Tensor, y: Tensor, size: int) -> float:
    """‖g_L‖ as a script gets it that differentiates the mean loss of `size` samples, by plain autograd."""
    norms = []
    for x_part, y_part in zip(x.split(size), y.split(size)):
        logits, hidden = net(x_part, return_hidden=True)
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(logits, y_part), [hidden[-1]])
        norms.append(g.norm(dim=1))  # walkback: ignore[P13]
    return float(torch.cat(norms).mean())


def main() -> None:
    data = wb.data.load("cifar10", set_up(str(__doc__)))
    runs = {name: wb.train(spec(**f), ROOT / "runs" / "left-open", data=data) for name, f in RUNS.items()}
    heads = [*(f"‖g_L‖ {epoch}" for epoch in range(1, 5)), "site 0", "deeper sites", "‖h_L‖", "ρ", "acc"]
    lines = [row(name, run.trajectory()) for name, run in runs.items()]
    table = tabulate([*lines, published()], ["run", *heads], tablefmt="github", disable_numparse=True)
    batches = probe_batches(data, torch.device("cpu"))
    x, y = (torch.cat(parts) for parts in zip(*batches))
    small, large = (of_mean_loss(runs["ours, plain"].model().eval(), x, y, size) for size in (128, 1024))
    text = f"""# DFA in its first four epochs, by what the documents leave open

{table}

- ‖g_L‖ after epoch 1 to 4, of a mean loss over 128 samples; cosines with the gradient after epoch 1, at site 0 and over
  sites 1 to L; ‖h_L‖, ρ and accuracy after epoch 4
- seed 42; ResMLP d=256 L=4 on CIFAR-10, AdamW at a constant 1e-3, batches of 128; made by
  `python scripts/left_open.py --root DIR`
- the batch of the norm: on the network of the first row after epoch 4, the gradient of a mean loss over 128 samples has
  ‖g_L‖ {small:.2e}, over 1024 samples {large:.2e}: {small / large:.2f} times less for the same network
"""
    (ROOT / "results" / "left-open.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
