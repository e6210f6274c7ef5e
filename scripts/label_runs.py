"""What trained blocks are worth, by outcome: re-randomise them, refit the readout, and see what it costs.

    python scripts/label_runs.py RUNS --root DATA --out results/outcomes.json

RUNS holds finished runs with their weights; runs that have a label keep it. `walkback calibrate` reads the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.data import Dataset
from walkback.rules.rule import Parts
from walkback.training.loop import build_net, evaluate
from walkback.training.spec import RunSpec

DRAWS = 3


def features(net: nn.Module, parts: Parts, data: Dataset, x: Tensor) -> Tensor:
    """What the head reads, (N, d)."""
    seen: list[Tensor] = []
    hook = parts.readout_modules[-1].register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    with torch.no_grad():
        for part in x.split(2000):
            net(data.prepare(part))
    hook.remove()
    return torch.cat(seen)


def refit(net: nn.Module, data: Dataset) -> None:
    """Logistic regression of the head on the training split, from zero."""
    parts = Parts.of(net)
    head = parts.readout_modules[-1]
    assert isinstance(head, nn.Linear)
    x, y = features(net, parts, data, data.train.x), data.train.y
    scale = x.std().clamp(min=1e-12)
    weight, bias = (torch.zeros_like(p, requires_grad=True) for p in (head.weight, head.bias))
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(F.linear(x / scale, weight, bias), y) + 1e-5 * weight.pow(2).sum()
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    with torch.no_grad():
        head.weight.copy_(weight / scale)
        head.bias.copy_(bias)


def gain(path: Path, data: Dataset) -> dict[str, float]:
    bundle = wb.load_bundle(path)
    own = ("schema", "input_shape", "classes")
    spec = RunSpec(**{k: v for k, v in bundle.spec.items() if k not in own})
    device = torch.device("cpu")
    accuracy = float(evaluate(bundle.model(), data, data.test, device)[0].double().mean())
    rivals = []
    for draw in range(DRAWS):
        net = bundle.model()
        fresh = build_net(spec.model_copy(update={"seed": 10_000 + draw}), data)
        for mine, other in zip(Parts.of(net).blocks, Parts.of(fresh).blocks):
            mine.load_state_dict(other.state_dict())
        refit(net, data)
        rivals.append(float(evaluate(net, data, data.test, device)[0].double().mean()))
    mean = sum(rivals) / DRAWS
    return {"accuracy": accuracy, "rerandomised": round(mean, 6), "gain_pp": round(100 * (accuracy - mean), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(options.out.read_text())["runs"] if options.out.is_file() else {}
    data: dict[str, Dataset] = {}
    for path in sorted(options.runs.iterdir()):
        if path.name in found or not (path / "report.json").is_file() or not (path / "weights.safetensors").is_file():
            continue
        spec = json.loads((path / "spec.json").read_text())
        if spec["scope"] != "all":
            continue
        if spec["data"] not in data:
            data[spec["data"]] = wb.data.load(spec["data"], wb.data.root_of(spec["data"], options.root))
        found[path.name] = gain(path, data[spec["data"]])
        print(path.name, found[path.name], flush=True)
        table = {"command": "python scripts/label_runs.py RUNS --root DATA --out FILE", "draws": DRAWS}
        table |= {"torch": torch.__version__, "runs": dict(sorted(found.items()))}
        options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
