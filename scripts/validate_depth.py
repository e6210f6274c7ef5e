"""How often is D3-outcome right? `wb.depth` on networks whose answer is known, as a Markdown table.

    python scripts/validate_depth.py --zoo 24 --seeds 2 --workers 4

Three sources. `zoo`: the constructed networks of `walkback calibrate`; known is what re-randomising their blocks costs
on 10,000 other samples, six other draws and a readout fitted by other code. `untrained`: networks at initialisation,
whose blocks are a random draw themselves and worth nothing. `trained`: the same after a short training by
backpropagation; known is what random blocks cost on 3,000 other samples, four other draws and a readout fitted in
SciPy. Networks: the papers' four at small size, and a ViT and a GPT-2 of Hugging Face.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import binomtest
from torch import Tensor, nn

import walkback as wb
from walkback.calibration.zoo import NETS, Rescaled, Strength, _mixed, _rivals, _scales, _task, accuracy
from walkback.network.anatomy import Anatomy

MARGIN, CLOSE = 2.0, 1.0  # pp: the margin of the check, and how near to it a known answer is called close
TRAIN, TEST, FRESH, CLASSES = 1500, 1500, 3000, 4
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Answer:
    """A network, what is known of its blocks in percentage points, and what `wb.depth` says."""

    source: str
    name: str
    known: float
    found: wb.Depth

    @property
    def flagged(self) -> bool | None:
        low, high = self.found.interval
        return None if low < MARGIN <= high else self.found.worth_pp < MARGIN


# -- constructed networks ----------------------------------------------------------------------------------------------


def constructed(number: int, seed: int, draws: int) -> list[Answer]:
    """A specimen of the zoo, but without a drifting head, which a refitted readout takes away."""
    task, draw = _task(), np.random.RandomState([seed, number])
    kind, base = list(NETS)[number % len(NETS)], 0
    mix = round(draw.choice([draw.uniform(0, 0.4), draw.uniform(0.4, 1.6)]), 1)
    net = _mixed(kind, mix, base)
    scales = _scales(Strength(growth=10 ** draw.uniform(0, 3), shrink=10 ** draw.uniform(0, 4)), 3)
    model = Rescaled(net, scales).float().eval()
    known = 100 * (accuracy(copy.deepcopy(net).float(), *task["fresh"]) - _rivals(kind, base))
    (x, y), (other, labels) = task["train"], task["test"]
    train, test = [(x[:TRAIN].float(), y[:TRAIN])], [(other[:TEST].float(), labels[:TEST])]
    return [Answer("zoo", f"{kind} mix {mix}", known, wb.depth(model, train, test, draws=draws, seed=number))]


# -- the papers' networks and Hugging Face's ---------------------------------------------------------------------------


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


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Tensor, Tensor]]]] = {
    "resmlp": (partial(paper, "resmlp", width=32, depth=2), images),
    "vit-mini": (partial(paper, "vit-mini", width=32, depth=2, patch=4, heads=2), images),
    "student": (partial(paper, "student", width=32, depth=2), images),
    "small-cnn": (partial(paper, "small-cnn", width=8, depth=2), images),
    "Hugging Face ViT": (hf_vit, images),
    "Hugging Face GPT-2": (hf_gpt2, words),
}


def real(name: str, seed: int, draws: int) -> list[Answer]:
    """A network untrained, and trained."""
    build, task = NETWORKS[name]
    data = [batched(*task(n, 10 * seed + i)) for i, n in enumerate((TRAIN, TEST, FRESH))]
    torch.manual_seed(seed)
    net = build()
    with torch.no_grad():  # batch norms have seen samples, as those of any network that is used
        _ = [net(x) for x, _ in data[0]]
    net.eval()
    before = wb.depth(net, *data[:2], draws=draws, build=build, seed=1000 * seed)
    trained(net, data[0], seed)
    after = wb.depth(net, *data[:2], draws=draws, build=build, seed=1000 * seed)
    known = outcome(net, build, data[0], data[2], seed)
    return [Answer("untrained", name, 0.0, before), Answer("trained", name, known, after)]


def batched(x: Tensor, y: Tensor) -> Batches:
    return list(zip(x.split(500), y.split(500)))


def trained(net: nn.Module, data: Batches, seed: int, epochs: int = 15) -> None:
    """Train by backpropagation, in place. Odd seeds stop after two epochs: their blocks are worth little."""
    optimiser = torch.optim.Adam(net.train().parameters(), 3e-3)
    for _ in range(2 if seed % 2 else epochs):
        for x, y in data:
            for index in torch.randperm(len(x)).split(100):
                optimiser.zero_grad()
                F.cross_entropy(net(x[index]), y[index]).backward()
                optimiser.step()
    net.eval()


def outcome(net: nn.Module, build: Callable[[], nn.Module], train: Batches, fresh: Batches, seed: int) -> float:
    """Percentage points that the trained blocks bring over random ones: other draws, readouts and samples."""

    def reached(model: nn.Module) -> float:
        head = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
        seen: list[Tensor] = []
        hook = head.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
        with torch.no_grad():
            for part in (train, fresh):
                for x, _ in part:
                    model(x)
        hook.remove()
        rows = [h[:, -1] if h.ndim == 3 else h for h in seen]
        a, b = torch.cat(rows[: len(train)]), torch.cat(rows[len(train) :])
        labels, others = (torch.cat([y for _, y in part]).numpy() for part in (train, fresh))
        predicts = softmax_regression(a.double().numpy(), labels)
        return float((predicts(b.double().numpy()) == others).mean())

    paths = [{id(m): p for p, m in net.named_modules()}[id(b)] for b in Anatomy.of(net).blocks]
    rivals = []
    for draw in range(4):
        torch.manual_seed(77_000 + 100 * seed + draw)
        other, new = copy.deepcopy(net), build()
        for path in paths:
            other.get_submodule(path).load_state_dict(new.get_submodule(path).state_dict())
        if any(isinstance(m, nn.BatchNorm2d) for m in other.modules()):
            for norm in (m for path in paths for m in other.get_submodule(path).modules()):
                if isinstance(norm, nn.BatchNorm2d):
                    norm.momentum = None
                    norm.train()
            with torch.no_grad():
                for x, _ in train:
                    other(x)
        rivals.append(reached(other.eval()))
    return 100 * (reached(net) - float(np.mean(rivals)))


def softmax_regression(x: np.ndarray, y: np.ndarray, ridge: float = 1e-4) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a readout in NumPy and SciPy, sharing no code with the package, and return what predicts classes."""
    mean, std = x.mean(0), x.std(0) + 1e-9
    rows, onehot = (x - mean) / std, np.eye(CLASSES)[y]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[:-CLASSES].reshape(CLASSES, -1), flat[-CLASSES:]
        logits = rows @ w.T + b
        log_p = logits - logsumexp(logits, 1, keepdims=True)
        error = (np.exp(log_p) - onehot) / len(x)
        slope = np.concatenate([(error.T @ rows + 2 * ridge * w).ravel(), error.sum(0)])
        return -(onehot * log_p).sum() / len(x) + ridge * (w**2).sum(), slope

    start = np.zeros(CLASSES * (x.shape[1] + 1))
    flat = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    return lambda other: ((other - mean) / std @ flat[:-CLASSES].reshape(CLASSES, -1).T + flat[-CLASSES:]).argmax(1)


# -- the table ---------------------------------------------------------------------------------------------------------


def rate(errors: int, of: int) -> str:
    """A share with its exact 95 % interval."""
    if not of:
        return "–"
    interval = binomtest(errors, of).proportion_ci(method="exact")
    return f"{errors}/{of} ({100 * interval.low:.0f}–{100 * interval.high:.0f} %)"


def table(answers: Sequence[Answer]) -> str:
    """False passes, false fails and undecided ones by source and network, then how far worth is from what is known."""
    groups: dict[str, list[Answer]] = {}
    for a in answers:
        groups.setdefault(a.name if a.source != "zoo" else "zoo of `walkback calibrate`", []).append(a)
    groups["**all**"] = list(answers)
    groups[f"all with a known worth over {CLOSE:g} pp off the margin"] = [
        a for a in answers if abs(a.known - MARGIN) > CLOSE
    ]
    lines = [
        "| networks | n | false pass (unused, said used) | false fail (used, said unused) | undecided | mean error |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, members in groups.items():
        unused, used = ([a for a in members if (a.known < MARGIN) is side] for side in (True, False))
        passes = sum(a.flagged is False for a in unused)
        fails = sum(a.flagged is True for a in used)
        open_ = sum(a.flagged is None for a in members)
        off = np.mean([abs(a.found.worth_pp - a.known) for a in members])
        lines.append(
            f"| {name} | {len(members)} | {rate(passes, len(unused))} | {rate(fails, len(used))} | "
            f"{open_}/{len(members)} | {off:.1f} pp |"
        )
    held = [a for a in answers if a.found.interval[0] <= a.known <= a.found.interval[1]]
    return "\n".join(
        [*lines, "", f"The 95 % interval holds the known worth of {rate(len(held), len(answers))} networks."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=int, default=24, help="constructed networks")
    parser.add_argument("--seeds", type=int, default=2, help="of the trained networks, each also untrained")
    parser.add_argument("--draws", type=int, default=3, help="of the blocks")
    parser.add_argument("--seed", type=int, default=0, help="of the constructed networks")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    given = parser.parse_args()
    jobs: list[partial[list[Answer]]] = [
        partial(real, name, seed, given.draws) for seed in range(given.seeds) for name in NETWORKS
    ]
    jobs += [partial(constructed, number, given.seed, given.draws) for number in range(given.zoo)]
    answers: list[Answer] = []
    with ProcessPoolExecutor(given.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for found in pool.map(_done, jobs):
            answers += found
            for a in found:
                low, high = a.found.interval
                line = f"{a.source:10} {a.name:20} known {a.known:+6.1f}  found {a.found.worth_pp:+6.1f}"
                print(f"{line} [{low:+.1f}, {high:+.1f}]", file=sys.stderr, flush=True)
    print(table(answers))


def _done(job: partial[list[Answer]]) -> list[Answer]:
    return job()


if __name__ == "__main__":
    main()
