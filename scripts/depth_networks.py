"""The networks and tasks that `validate_depth.py` tries: the papers' four at small size, a ViT and a GPT-2."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb

CLASSES = 4
Build = Callable[[], nn.Module]
Batches = list[tuple[Tensor, Tensor]]


def images(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """(N, 1, 8, 8) noise with two bright quadrants; which of four pairings they are can't be read linearly."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 * torch.randn(samples, 1, 8, 8, generator=generator)
    a, b = (torch.randint(2, (samples,), generator=generator) for _ in range(2))
    c, d = (torch.randint(2, (samples,), generator=generator) for _ in range(2))
    signs = [2 * s.view(-1, 1, 1, 1) - 1 for s in (a, b, c, d)]
    for sign, (i, j) in zip(signs, ((0, 0), (0, 4), (4, 0), (4, 4))):
        x[:, :, i : i + 4, j : j + 4] += sign
    return x, 2 * (a ^ b) + (c ^ d)


def words(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """(N, 6) tokens of 8; the class is how the first and the last of them compare by two parities."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(8, (samples, 6), generator=generator)
    return x, 2 * ((x[:, 0] + x[:, 5]) % 2) + (x[:, 1] // 4 ^ x[:, 4] // 4)


class Logits(nn.Module):
    """A model of transformers whose answer is its logits."""

    def __init__(self, inner: nn.Module, keyword: str) -> None:
        super().__init__()
        self.inner, self.keyword = inner, keyword

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(**{self.keyword: x}).logits


def hf_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=8,
                       patch_size=4, num_channels=1, num_labels=CLASSES, hidden_dropout_prob=0.0)  # fmt: skip
    return Logits(ViTForImageClassification(config), "pixel_values")


def hf_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    tokens = {"vocab_size": 9, "pad_token_id": 8, "bos_token_id": 7, "eos_token_id": 7}
    config = GPT2Config(n_positions=6, n_embd=32, n_layer=2, n_head=2, num_labels=CLASSES, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, **tokens)  # fmt: skip
    return Logits(GPT2ForSequenceClassification(config), "input_ids")


def paper(name: str, **options: int) -> nn.Module:
    return wb.nets.build(name, (1, 8, 8), CLASSES, **options)


NETWORKS: dict[str, tuple[Build, Callable[[int, int], tuple[Tensor, Tensor]]]] = {
    "resmlp": (partial(paper, "resmlp", width=32, depth=2), images),
    "vit-mini": (partial(paper, "vit-mini", width=32, depth=2, patch=4, heads=2), images),
    "student": (partial(paper, "student", width=32, depth=2), images),
    "small-cnn": (partial(paper, "small-cnn", width=8, depth=2), images),
    "Hugging Face ViT": (hf_vit, images),
    "Hugging Face GPT-2": (hf_gpt2, words),
}


def batched(x: Tensor, y: Tensor) -> Batches:
    return list(zip(x.split(500), y.split(500)))


def descend(net: nn.Module, data: Batches, epochs: int) -> None:
    """Train by backpropagation, in place."""
    optimiser = torch.optim.Adam(net.train().parameters(), 3e-3)
    for _ in range(epochs):
        for x, y in data:
            for index in torch.randperm(len(x)).split(100):
                optimiser.zero_grad()
                F.cross_entropy(net(x[index]), y[index]).backward()
                optimiser.step()


def settle(modules: Iterable[nn.Module], net: nn.Module, train: Batches) -> None:
    """Let batch norms among these modules take the statistics of all training samples."""
    norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        _ = [net(x) for x, _ in train if norms]
    for norm in norms:
        norm.eval()
