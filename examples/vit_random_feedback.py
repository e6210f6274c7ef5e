"""Audit a Hugging Face vision transformer fine-tuned with a random-feedback head, without changing its code.

The head computes what a linear layer computes, but sends the error back through a fixed random matrix, as
feedback-alignment libraries do with a custom autograd Function. From there down the transformer uses ordinary
backpropagation, of a wrong signal. Autograd can't tell: asked for the gradient, it returns the altered one.

`walkback.recorded` runs this backward pass and records the signal that reaches every block. What it is compared with is
derived from the forward pass alone, and confirmed by finite differences. Everything is small and random, nothing is
downloaded. Run it with `python examples/vit_random_feedback.py`: a few seconds. It needs `walkback[hf]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

import walkback as wb

CLASSES = 4


class RandomFeedback(torch.autograd.Function):
    """x Wᵀ forward; backward the error goes through B instead of W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, feedback: Tensor) -> Tensor:
        """(B, d) to (B, C)."""
        ctx.save_for_backward(x, feedback)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """The weight learns from the true error; what lies below does not get it."""
        x, feedback = ctx.saved_tensors
        return grad @ feedback, grad.T @ x, None


class RandomFeedbackHead(nn.Linear):
    """A classifier with a fixed random matrix for its backward pass."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.register_buffer("feedback", torch.randn(classes, width) / width**0.5)

    def forward(self, input: Tensor) -> Tensor:
        """(B, d) to (B, C)."""
        return RandomFeedback.apply(input, self.weight, self.feedback) + self.bias


def build() -> nn.Module:
    """A tiny ViT with the random-feedback head."""
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=12,
        patch_size=4,
        num_channels=1,
    )
    config.num_labels = CLASSES
    model = ViTForImageClassification(config)
    model.classifier = RandomFeedbackHead(config.hidden_size, CLASSES)
    return model


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """(count, 1, 12, 12) noise with a bright square in the quarter that the label names."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 12, 12, generator=generator)
    y = torch.randint(CLASSES, (count,), generator=generator)
    for image, label in zip(x, y.tolist()):
        top, left = 6 * (label // 2), 6 * (label % 2)
        image[:, top : top + 6, left : left + 6] += 0.7
    return x, y


def train(model: nn.Module, steps: int = 100) -> float:
    """Ordinary training code; returns the test accuracy."""
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    x, y = images(64 * steps, seed=1)
    model.train()
    for xs, ys in zip(x.split(64), y.split(64)):
        optimiser.zero_grad()
        cross_entropy(model(xs).logits, ys).backward()
        optimiser.step()
    model.eval()
    x, y = images(1024, seed=2)
    with torch.no_grad():
        return (model(x).logits.argmax(1) == y).double().mean().item()


def main() -> None:
    """Train, train the frozen control, and print two audits: the naive one and the true one."""
    torch.set_num_threads(1)  # such small tensors are slower with more
    anatomy = {"stem": "vit.embeddings", "blocks": "vit.layers", "readout": ["vit.layernorm", "classifier"]}
    torch.manual_seed(0)
    model = build()
    accuracy = train(model)
    control = wb.frozen_baseline(build, train, seed=0, anatomy=anatomy)
    x, y = images(1024, seed=2)
    batches = list(zip(x.split(128), y.split(128)))

    naive = wb.measure(model, batches, anatomy=anatomy, credit=lambda trace: trace.grads)
    print(f"Autograd's gradient as reference: Γ = {naive.gamma:.3f}\n  but {naive.altered}\n")
    report = wb.diagnose(
        model,
        batches,
        headline_acc=accuracy,
        frozen_baseline_acc=control.accuracy,
        credit=wb.recorded(model),
        anatomy=anatomy,
        method_name="ViT, random-feedback head",
    )
    print(control, report, sep="\n\n")


if __name__ == "__main__":
    main()
