"""A learning rule of your own: written once, trained, compared with its frozen control, and audited.

The rule is direct random target projection: every site gets the *label*, carried by a fixed random matrix. It needs no
error and no backward pass, so it can run while the forward pass is still going on. Does it use the network's depth?
It does not: a credit that never shrinks makes the blocks grow, until the reference is lost and frozen blocks do better.
Run it with `python examples/own_rule.py`: some seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import walkback as wb
from walkback.rules import Parts, Rule


class TargetProjection(Rule):
    """a_l = −B_lᵀ onehot(label), with B_l fixed, C×d."""

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw one matrix for every site; as buffers they are saved, loaded and moved with the rule."""
        self.classes = classes
        for site, state in enumerate(states):
            width = state.shape[-1]
            self.register_buffer(f"B{site}", torch.randn(classes, width, generator=generator) / width**0.5)

    def credits(self, trace: wb.TrainingPass) -> list[Tensor]:
        """Gradient-like: a step goes along −a_l, towards what the label's row of B_l points at."""
        target = one_hot(trace.labels, self.classes).to(trace.logits.dtype)
        return [-target @ self.get_buffer(f"B{site}") for site in range(len(trace.states))]


def main() -> None:
    """Train the rule and its control, certify it, and print the report."""
    torch.set_num_threads(1)  # such small tensors are slower with more
    spec = wb.RunSpec(
        rule="own_rule:TargetProjection",
        net="resmlp",
        net_options={"width": 32, "depth": 2},
        data="teacher",
        epochs=2,
        seed=0,
        optimiser={"lr": 8e-3, "schedule": "constant"},
    )
    with tempfile.TemporaryDirectory() as runs:
        bundle = wb.train(spec, runs, quiet=True)
        control = wb.frozen_baseline(spec, runs, quiet=True)
        network = bundle.model()
        rule = bundle.rule(network)
        certificate = wb.certify(rule, network)
        accuracy, frozen = (run.trajectory()[-1]["test_acc"] for run in (bundle, control))
    test = wb.data.load("teacher").test
    batches = list(zip(test.x[:1024].split(128), test.y[:1024].split(128)))
    report = wb.diagnose(
        network,
        batches,
        headline_acc=accuracy,
        frozen_baseline_acc=frozen,
        credit=rule,
        method_name="target projection",
    )
    print(certificate, report, sep="\n\n")


if __name__ == "__main__":
    main()
