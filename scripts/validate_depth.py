"""How often is D3-outcome right? `wb.depth` on networks whose answer is known, as rows and as a Markdown table.

    python scripts/validate_depth.py --zoo 18 --seeds 2 --out results
    python scripts/validate_depth.py --runs STORE --root DATA --out results

What is known of a network's blocks is measured by code of its own: SciPy's readouts, other draws, other samples, with
its error. Sources:

- `zoo`: networks like the constructed ones of `walkback calibrate`;
- `untrained`: networks at initialisation. Their blocks are one random draw, better or worse than others by chance;
- `trained`: the same after a short training by backpropagation;
- `runs`: finished runs with their weights, on the train and the test split of their own data.

Networks of the middle two: the papers' four at small size, and a ViT and a GPT-2 of Hugging Face. Rows are kept in
`depth-cases.jsonl` of the folder, so a call that was stopped goes on; `depth-errors.md` is the table of all rows.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import logsumexp
from tabulate import tabulate
from torch import Tensor, nn

import walkback as wb
from walkback.calibration.rows import kept_rows, read_rows
from walkback.calibration.score import rate
from walkback.calibration.zoo import NETS, Rescaled, Strength, _fresh, _mixed, _scales, _task
from walkback.data import Split
from walkback.network.anatomy import Anatomy
from walkback.training.worth import SplitBatches, run_depth

FILE, TABLE = "depth-cases.jsonl", "depth-errors.md"
MARGIN = 2.0  # pp, of the check
TRAIN, TEST, FRESH, CHOICE, CLASSES = 1500, 1500, 3000, 2000, 4
DRAWS = 8  # of what is known; `wb.depth` makes three of its own
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
Batches = list[tuple[Tensor, Tensor]]
Build = Callable[[], nn.Module]
Parts = list[Batches]  # to fit readouts on, to choose their ridge on, and fresh ones to compare on


# -- what is known -----------------------------------------------------------------------------------------------------


def known_worth(net: nn.Module, rivals: np.ndarray, parts: Parts) -> tuple[float, float]:
    """Percentage points that the blocks of a network bring over random ones, and their standard error."""
    own = reached(net, parts)
    of_samples = float((own.astype(float) - rivals.mean(0)).var()) / len(own)
    of_draws = float(rivals.mean(1).var(ddof=1)) / len(rivals)
    return 100 * (float(own.mean()) - float(rivals.mean())), 100 * math.sqrt(of_samples + of_draws)


def random_blocks(net: nn.Module, build: Build, parts: Parts, draws: int = DRAWS) -> np.ndarray:
    """(draws, N) which fresh samples the network gets right with random blocks and a readout fitted to them."""
    paths = [{id(m): p for p, m in net.named_modules()}[id(b)] for b in Anatomy.of(net).blocks]
    found = []
    for draw in range(draws):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(77_000 + draw)
            other, new = copy.deepcopy(net), build()
        for path in paths:
            other.get_submodule(path).load_state_dict(new.get_submodule(path).state_dict())
        settle([m for path in paths for m in other.get_submodule(path).modules()], other, parts[0])
        found.append(reached(other.eval(), parts))
    return np.stack(found)


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


def reached(net: nn.Module, parts: Parts) -> np.ndarray:
    """(N,) which fresh samples a readout gets right that was fitted in SciPy to what the last linear map reads.

    `parts`: samples to fit on, others to choose the ridge on, by accuracy, and the fresh ones.
    """
    head = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    rows: list[np.ndarray] = []
    for part in parts:
        seen: list[Tensor] = []
        hook = head.register_forward_pre_hook(partial(_keep, seen))
        with torch.no_grad():
            _ = [net(x) for x, _ in part]
        hook.remove()
        rows.append(torch.cat([h[:, -1] if h.ndim == 3 else h for h in seen]).double().numpy())
    labels = [torch.cat([y for _, y in part]).numpy() for part in parts]
    classes = max(int(y.max()) for y in labels) + 1
    fitted = [softmax_regression(rows[0], labels[0], ridge, classes) for ridge in RIDGES]
    best = max(fitted, key=lambda predicts: float((predicts(rows[1]) == labels[1]).mean()))
    return best(rows[2]) == labels[2]


def _keep(seen: list[Tensor], _module: nn.Module, args: tuple[Any, ...]) -> None:
    seen.append(args[0].detach())


def softmax_regression(x: np.ndarray, y: np.ndarray, ridge: float, classes: int) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a readout in NumPy and SciPy, sharing no code with the package, and return what predicts classes."""
    mean, std = x.mean(0), x.std(0) + 1e-9
    rows, onehot = (x - mean) / std, np.eye(classes)[y]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[:-classes].reshape(classes, -1), flat[-classes:]
        logits = rows @ w.T + b
        log_p = logits - logsumexp(logits, 1, keepdims=True)
        error = (np.exp(log_p) - onehot) / len(x)
        slope = np.concatenate([(error.T @ rows + 2 * ridge * w).ravel(), error.sum(0)])
        return -(onehot * log_p).sum() / len(x) + ridge * (w**2).sum(), slope

    start = np.zeros(classes * (x.shape[1] + 1))
    flat = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
    return lambda other: ((other - mean) / std @ flat[:-classes].reshape(classes, -1).T + flat[-classes:]).argmax(1)


def row(name: str, source: str, network: str, known: tuple[float, float], found: wb.Depth) -> dict[str, Any]:
    """A network, what is known of its blocks, and what `wb.depth` says of them."""
    numbers = {"known_pp": known[0], "known_error_pp": known[1], "worth_pp": found.worth_pp}
    more = {"interval": list(found.interval), "trained": found.trained, "rerandomised": list(found.rerandomised)}
    rounded = {k: round(v, 4) for k, v in numbers.items()} | {
        k: [round(x, 4) for x in v] if isinstance(v, list) else round(v, 4) for k, v in more.items()
    }
    return {"name": name, "source": source, "network": network, **rounded, "samples": found.samples}


# -- constructed networks ----------------------------------------------------------------------------------------------


def constructed(number: int, name: str) -> dict[str, Any]:
    """A specimen like those of the zoo, but without a drifting head, which a refitted readout takes away."""
    task, draw = _task(), np.random.RandomState([7, number])
    kind = list(NETS)[number % len(NETS)]
    mix = round(draw.choice([draw.uniform(0, 0.4), draw.uniform(0.4, 1.6)]), 1)
    net = copy.deepcopy(_mixed(kind, mix, 0)).float().eval()
    scales = _scales(Strength(growth=10 ** draw.uniform(0, 3), shrink=10 ** draw.uniform(0, 4)), 3)
    parts = [(x[:n].float(), y[:n]) for (x, y), n in ((task["train"], TRAIN), (task["test"], TEST))]
    known = known_worth(net, _zoo_rivals(kind), _zoo_parts())
    return row(name, "zoo", kind, known, wb.depth(Rescaled(net, scales).eval(), parts[:1], parts[1:], seed=number))


def _zoo_parts() -> Parts:
    (x, y), (other, labels) = _task()["train"], _task()["fresh"]
    ends = ((x[:TRAIN], y[:TRAIN]), (other[FRESH : FRESH + CHOICE], labels[FRESH : FRESH + CHOICE]),
            (other[:FRESH], labels[:FRESH]))  # fmt: skip
    return [[(a.float(), b)] for a, b in ends]


@lru_cache
def _zoo_rivals(kind: str) -> np.ndarray:
    """Those of one stem: all specimens of a family have it."""
    net = copy.deepcopy(_mixed(kind, 0.0, 0)).float().eval()
    draws = iter(range(9000, 9000 + DRAWS))
    return random_blocks(net, lambda: _fresh(kind, next(draws)).float(), _zoo_parts())


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


NETWORKS: dict[str, tuple[Build, Callable[[int, int], tuple[Tensor, Tensor]]]] = {
    "resmlp": (partial(paper, "resmlp", width=32, depth=2), images),
    "vit-mini": (partial(paper, "vit-mini", width=32, depth=2, patch=4, heads=2), images),
    "student": (partial(paper, "student", width=32, depth=2), images),
    "small-cnn": (partial(paper, "small-cnn", width=8, depth=2), images),
    "Hugging Face ViT": (hf_vit, images),
    "Hugging Face GPT-2": (hf_gpt2, words),
}


def real(network: str, seed: int, train: bool, name: str) -> dict[str, Any]:
    """A network untrained, or trained: Adam, lr 3e-3, for 15 epochs of even seeds and 2 of odd ones."""
    build, task = NETWORKS[network]
    sizes = (TRAIN, TEST, FRESH, CHOICE)
    fit, test, fresh, choice = (batched(*task(n, 10 * seed + i)) for i, n in enumerate(sizes))
    torch.manual_seed(seed)
    net = build()
    if train:
        descend(net, fit, 2 if seed % 2 else 15)
    # Three passes with a momentum of 0.1 would leave batch norms at a quarter of what the samples have.
    settle(net.eval().modules(), net, fit)
    found = wb.depth(net, fit, test, build=build, seed=1000 * seed)
    parts = [fit, choice, fresh]
    known = known_worth(net, random_blocks(net, build, parts), parts)
    return row(name, "trained" if train else "untrained", network, known, found)


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


# -- finished runs -----------------------------------------------------------------------------------------------------


def of_run(path: Path, root: Path | None, most: int, name: str) -> dict[str, Any]:
    """A finished run on its own splits. Readouts are fitted on `most` training samples, for what is known on others."""
    bundle = wb.load_bundle(path)
    data = wb.data.load(bundle.spec["data"], wb.data.root_of(bundle.spec["data"], root))
    device = torch.device("cpu")
    x, y = data.train.x, data.train.y
    cut = len(x) - len(x) // 10  # the ridge is chosen on the last tenth
    splits = [Split(x[:cut][-most:], y[:cut][-most:]), Split(x[cut:], y[cut:]), data.test]
    parts = [list(SplitBatches(data, split, device)) for split in splits]
    found = run_depth(bundle, data, most=most)
    net = bundle.model().eval()
    known = known_worth(net, random_blocks(net, bundle.untrained, parts, 4), parts)
    words = f"{bundle.spec['net']}, {bundle.spec['data']}, {bundle.spec['rule']}, {bundle.spec['epochs']} epochs"
    return row(name, "runs", words, known, found)


# -- the table ---------------------------------------------------------------------------------------------------------


def flagged(one: dict[str, Any]) -> bool | None:
    """What D3-outcome says: flagged, not flagged, or None where the interval straddles."""
    low, high = one["interval"]
    return None if low < MARGIN <= high else one["worth_pp"] < MARGIN


def unused(one: dict[str, Any]) -> bool | None:
    """What is known: unused, used, or None where its own error leaves that open."""
    off = one["known_pp"] - MARGIN
    return None if abs(off) <= 2 * one["known_error_pp"] else off < 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Errors by source and network, as `walkback calibrate` states them, and how far worth is from what is known."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in rows:
        where = {"zoo": "constructed, as in `walkback calibrate`", "runs": "finished runs"}
        groups.setdefault(where.get(one["source"], one["network"]), []).append(one)
    groups["**all**"] = list(rows)
    lines = []
    for name, members in groups.items():
        answers = [(unused(one), flagged(one)) for one in members]
        kinds = ((True, True), (True, False), (False, False), (False, True))
        hits, misses, passes, alarms = (answers.count(kind) for kind in kinds)
        open_ = sum(truth is not None and said is None for truth, said in answers)
        close = sum(truth is None for truth, _ in answers)
        off = [one["worth_pp"] - one["known_pp"] for one in members]
        rates = [rate_words(hits, hits + misses), rate_words(passes, passes + alarms)]
        lines.append([name, len(members), hits, misses, passes, alarms, open_ or "", close or "", *rates,
                      f"{np.mean(off):+.1f}", f"{np.sqrt(np.mean(np.square(off))):.1f}"])  # fmt: skip
    heads = "networks | n | TP | FN | TN | FP | ? | close | sensitivity | specificity | mean error | rms error, pp"
    held = sum(holds(one) for one in rows)
    fresh = [one for one in rows if one["source"] == "untrained"]
    lucky = sum(flagged(one) is False for one in fresh)
    beyond = sum(flagged(one) is False and one["trained"] > max(one["rerandomised"]) for one in fresh)
    return "\n".join(
        [
            tabulate(lines, heads.split(" | "), "github", disable_numparse=True),
            "",
            "Positive is unused: trained blocks are worth less than 2 pp. ?: the interval straddles. close: what is",
            "known lies within two of its own standard errors of 2 pp, and counts in no rate. Exact 95 % intervals.",
            "",
            f"- The 95 % interval holds what is known, or its error reaches it, in {rate_words(held, len(rows))} of "
            f"{len(rows)} networks.",
            "- Untrained networks that pass, since their one draw is better than others: "
            f"{lucky} of {len(fresh)}; {beyond} of them without the note that a random draw does as well.",
        ]
    )


def holds(one: dict[str, Any]) -> bool:
    """Is what is known inside of the interval, give or take its own error?"""
    (low, high), worth, known = one["interval"], one["worth_pp"], one["known_pp"]
    half = math.hypot((high - low) / 2, 1.96 * one["known_error_pp"])
    return abs(worth - known) <= half


def rate_words(k: int, n: int) -> str:
    """A share with its exact 95 % interval, empty of none."""
    found = rate(k, n)
    return "" if found is None else f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=int, default=0, help="constructed networks")
    parser.add_argument("--seeds", type=int, default=0, help="of the trained networks, each also untrained")
    parser.add_argument("--runs", type=Path, help="a folder with finished runs and their weights")
    parser.add_argument("--root", type=Path, help="of data sets")
    parser.add_argument("--most", type=int, default=10_000, help="training samples for readouts of a run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows and the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = [f"constructed {number}" for number in range(given.zoo)]
    jobs: list[Callable[[str], dict[str, Any]]] = [partial(constructed, number) for number in range(given.zoo)]
    for seed in range(given.seeds):
        for network in NETWORKS:
            for train in (True, False):
                names.append(f"{network}, {'trained' if train else 'untrained'}, seed {seed}")
                jobs.append(partial(real, network, seed, train))
    for path in sorted(given.runs.iterdir()) if given.runs else ():
        if (path / "report.json").is_file() and (path / "weights.safetensors").is_file():
            names.append(path.name)
            jobs.append(partial(of_run, path, given.root, given.most))
    wanted = [(name, partial(job, name)) for name, job in zip(names, jobs)]
    for one in kept_rows(given.out / FILE, wanted):
        ends = "[{:+.1f}, {:+.1f}]".format(*one["interval"])
        known = f"known {one['known_pp']:+6.1f} ± {one['known_error_pp']:.1f}"
        print(f"{one['name']:44} {known}  found {one['worth_pp']:+6.1f} {ends}", file=sys.stderr, flush=True)
    rows = read_rows(given.out / FILE)
    (given.out / TABLE).write_text(f"# Errors of D3-outcome\n\n{table(rows)}\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
