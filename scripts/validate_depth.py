"""How often is D3-outcome right? `wb.depth` on networks whose answer is known, as rows and as a Markdown table.

    python scripts/validate_depth.py --zoo 12 --seeds 2 --broken 60 --redrawn 21 --out results
    python scripts/validate_depth.py --runs STORE --root DATA --out results

What is known of a network's blocks is measured by code of its own: SciPy's readouts, other draws, other samples, with
its error. Every network has draws of its own, so that one lucky draw does not spoil several rows. Sources:

- `zoo`: networks like the constructed ones of `walkback calibrate`;
- `untrained`: networks at initialisation. Their blocks are one random draw, better or worse than others by chance;
- `trained`: the same after a short training by backpropagation;
- `broken`: networks that DFA, FA, EP and BP trained for seconds, as in `walkback calibrate`, most of them to no use;
- `redrawn`: networks trained by backpropagation whose blocks were then drawn anew, louder with every third one;
- `runs`: finished runs with their weights, on the train and the test split of their own data.

Networks of the middle two: the papers' four at small size, and a ViT and a GPT-2 of Hugging Face. Rows are kept in
`depth-cases.jsonl` of the folder, so a call that was stopped goes on; `depth-errors.md` is the table of all rows.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from tabulate import tabulate
from torch import Tensor, nn

import walkback as wb
from depth_networks import CLASSES, NETWORKS, Batches, Build, batched, descend, settle
from walkback.calibration import trained
from walkback.calibration.rows import kept_rows, read_rows
from walkback.calibration.score import rate
from walkback.calibration.zoo import NETS, Rescaled, Strength, _fresh, _mixed, _scales, _task
from walkback.data import Split
from walkback.measures import depth
from walkback.network.anatomy import Anatomy
from walkback.training.spec import RunSpec
from walkback.training.worth import SplitBatches, run_depth

FILE, TABLE = "depth-cases.jsonl", "depth-errors.md"
MARGIN = 2.0  # pp, of the check
TRAIN, TEST, FRESH, CHOICE = 600, 1500, 3000, 2000
DRAWS, SHARED = 6, 24  # of what is known, of one network and of a family; `wb.depth` makes three of its own
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2)
GROUPS = {
    "zoo": "constructed, as in `walkback calibrate`",
    "broken": "broken by training: DFA, FA, EP, BP",
    "redrawn": "trained, then blocks drawn anew",
    "runs": "finished runs",
}
Parts = list[Batches]  # to fit readouts on, to choose their ridge on, and fresh ones to compare on


# -- what is known -----------------------------------------------------------------------------------------------------


def known_worth(net: nn.Module, rivals: np.ndarray, parts: Parts) -> tuple[float, float]:
    """Percentage points that the blocks of a network bring over random ones, and their standard error."""
    own = reached(net, parts)
    of_samples = float((own.astype(float) - rivals.mean(0)).var()) / len(own)
    of_draws = float(rivals.mean(1).var(ddof=1)) / len(rivals)
    return 100 * (float(own.mean()) - float(rivals.mean())), 100 * math.sqrt(of_samples + of_draws)


def random_blocks(net: nn.Module, build: Build, parts: Parts, name: str, draws: int = DRAWS) -> np.ndarray:
    """(draws, N) which fresh samples the network gets right with random blocks and a readout fitted to them.

    The draws hang on the name: were they the same for all networks, one lucky draw would look like a bias.
    """
    paths = block_paths(net)
    found = []
    for draw in range(draws):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(f"{name} {draw}".encode()))
            other, new = copy.deepcopy(net), build()
        for path in paths:
            other.get_submodule(path).load_state_dict(new.get_submodule(path).state_dict())
        settle([m for path in paths for m in other.get_submodule(path).modules()], other, parts[0])
        found.append(reached(other.eval(), parts))
    return np.stack(found)


def block_paths(net: nn.Module) -> list[str]:
    """Return where the blocks of a network are."""
    return [{id(m): p for p, m in net.named_modules()}[id(b)] for b in Anatomy.of(net).blocks]


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
    fitted = softmax_regressions(rows[0], labels[0], classes)
    best = max(fitted, key=lambda predicts: float((predicts(rows[1]) == labels[1]).mean()))
    return best(rows[2]) == labels[2]


def _keep(seen: list[Tensor], _module: nn.Module, args: tuple[Any, ...]) -> None:
    seen.append(args[0].detach())


def softmax_regressions(x: np.ndarray, y: np.ndarray, classes: int) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Fit a readout of every ridge in NumPy and SciPy, sharing no code with the package; return what predicts classes.

    The optimum does not hang on the start, which is the optimum of the next stronger ridge.
    """
    mean, std = x.mean(0), x.std(0) + 1e-9
    rows, onehot = (x - mean) / std, np.eye(classes)[y]

    def loss(flat: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
        w, b = flat[:-classes].reshape(classes, -1), flat[-classes:]
        logits = rows @ w.T + b
        log_p = logits - logsumexp(logits, 1, keepdims=True)
        error = (np.exp(log_p) - onehot) / len(x)
        slope = np.concatenate([(error.T @ rows + 2 * ridge * w).ravel(), error.sum(0)])
        return -(onehot * log_p).sum() / len(x) + ridge * (w**2).sum(), slope

    def predict(flat: np.ndarray, other: np.ndarray) -> np.ndarray:
        return ((other - mean) / std @ flat[:-classes].reshape(classes, -1).T + flat[-classes:]).argmax(1)

    found, flat = [], np.zeros(classes * (x.shape[1] + 1))
    for ridge in sorted(RIDGES, reverse=True):
        flat = minimize(loss, flat, (ridge,), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
        found.append(partial(predict, flat))
    return found


def worth(net: nn.Module, fit: Batches, test: Batches, name: str, build: Build | None = None) -> wb.Depth:
    """Return what `wb.depth` says, with draws of the name's own and without what stands beside it.

    Probes of the sites, blocks left out and the inputs alone take two thirds of the time and do not touch the worth.
    """
    full = depth.Pair.right

    def of_head(pair: depth.Pair, at: int | str, strength: float) -> Tensor:
        return full(pair, at, strength) if isinstance(at, str) else torch.zeros(1)

    with (
        patch.object(depth.Pair, "right", of_head),
        patch.object(depth, "_without", return_value=(None, "")),
        patch.object(depth, "_pixels", return_value=(None, "")),
    ):
        return wb.depth(net, fit, test, build=build, seed=zlib.crc32(name.encode()) % 2**31)


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
    return row(name, "zoo", kind, known, worth(Rescaled(net, scales).eval(), parts[:1], parts[1:], name))


def _zoo_parts() -> Parts:
    (x, y), (other, labels) = _task()["train"], _task()["fresh"]
    ends = ((x[:TRAIN], y[:TRAIN]), (other[FRESH : FRESH + CHOICE], labels[FRESH : FRESH + CHOICE]),
            (other[:FRESH], labels[:FRESH]))  # fmt: skip
    return [[(a.float(), b)] for a, b in ends]


@lru_cache
def _zoo_rivals(kind: str) -> np.ndarray:
    """Those of one stem: all specimens of a family have it."""
    net = copy.deepcopy(_mixed(kind, 0.0, 0)).float().eval()
    draws = iter(range(9000, 9000 + SHARED))
    return random_blocks(net, lambda: _fresh(kind, next(draws)).float(), _zoo_parts(), kind, SHARED)


# -- the papers' networks and Hugging Face's ---------------------------------------------------------------------------


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
    found = worth(net, fit, test, name, build)
    parts = [fit, choice, fresh]
    known = known_worth(net, random_blocks(net, build, parts, name), parts)
    return row(name, "trained" if train else "untrained", network, known, found)


def redrawn(number: int, name: str) -> dict[str, Any]:
    """A network trained by backpropagation whose blocks were drawn anew: as built, or three or ten times as loud."""
    network = list(NETWORKS)[number % len(NETWORKS)]
    build, task = NETWORKS[network]
    loud = (1.0, 3.0, 10.0)[number // len(NETWORKS) % 3]
    sizes = (TRAIN, FRESH, FRESH, CHOICE)
    fit, test, fresh, choice = (batched(*task(n, 5000 + 10 * number + i)) for i, n in enumerate(sizes))
    torch.manual_seed(900 + number)
    net, new = build(), build()
    descend(net, fit, 5)
    for path in block_paths(net):
        block = net.get_submodule(path)
        block.load_state_dict(new.get_submodule(path).state_dict())
        with torch.no_grad():
            _ = [p.mul_(loud) for p in block.parameters() if p.ndim > 1]
    settle(net.eval().modules(), net, fit)
    found = worth(net, fit, test, name, build)
    parts = [fit, choice, fresh]
    known = known_worth(net, random_blocks(net, build, parts, name), parts)
    return row(name, "redrawn", network, known, found)


def broken(spec: RunSpec, name: str) -> dict[str, Any]:
    """A network that a rule trained for seconds on the task of the constructed ones."""
    net = trained._train(spec, trained.task())[0]
    (x, y), (other, labels), (choice, chosen) = (_task()[part] for part in ("train", "fresh", "test"))
    fit, test, fresh = (x[:TRAIN], y[:TRAIN]), (other[-FRESH:], labels[-FRESH:]), (other[:FRESH], labels[:FRESH])
    batches = [[(a.float(), b)] for a, b in (fit, test, (choice, chosen), fresh)]
    found = worth(net, batches[0], batches[1], name)

    def build() -> nn.Module:
        return wb.nets.build("resmlp", tuple(x.shape[1:]), CLASSES, **spec.net_options)

    parts = [batches[0], *batches[2:]]
    known = known_worth(net, random_blocks(net, build, parts, name), parts)
    return row(name, "broken", f"{spec.rule}, {spec.credit_length} credit", known, found)


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
    known = known_worth(net, random_blocks(net, bundle.untrained, parts, name, 4), parts)
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
        groups.setdefault(GROUPS.get(one["source"], one["network"]), []).append(one)
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
    parser.add_argument("--broken", type=int, default=0, help="networks trained by DFA, FA, EP and BP for seconds")
    parser.add_argument("--redrawn", type=int, default=0, help="trained networks whose blocks were drawn anew")
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
    brief = [spec for spec in trained.specs(6 * given.broken, seed=7) if spec.epochs == 1]
    for number, spec in enumerate(brief[: given.broken]):
        names.append(f"broken {number}: {spec.rule}, {spec.credit_length} credit, rate {spec.optimiser.lr:g}")
        jobs.append(partial(broken, spec))
    for number in range(given.redrawn):
        names.append(f"{list(NETWORKS)[number % len(NETWORKS)]}, redrawn {number}")
        jobs.append(partial(redrawn, number))
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
