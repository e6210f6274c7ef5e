"""How far the pixels alone go: multinomial logistic regression, trained with the recipe of the networks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from walkback.audit.shapes import check
from walkback.errors import FormatError
from walkback.files import write_whole
from walkback.training.spec import RunSpec, schema_of
from walkback.verdict.files import read_table

SCHEMA = "walkback.linear-probe/1"
FILE = "linear_probe.json"


def linear_probe_file(folder: Path) -> Path:
    """Return where the record is: in the folder of the records, or beside it."""
    beside = folder.resolve().parent / FILE
    return beside if not (folder / FILE).exists() and beside.exists() else folder / FILE


def read_linear_probe(folder: Path) -> dict[str, dict[str, Any]]:
    """Return data set -> its record; empty where none was made."""
    path = linear_probe_file(folder)
    if not path.exists():
        return {}
    document: Any = read_table(path)
    if (got := schema_of(document)) != SCHEMA or not isinstance(document.get("probes"), dict):
        raise FormatError(f"Expected {path} to be of schema {SCHEMA}, but got {got}.")
    for name, record in document["probes"].items():
        check("probe", record, f"probes.{name} of {path}")
    return document["probes"]


def train_linear_probe(
    data: str = "cifar10", root: str | Path | None = None, folder: str | Path = "results", epochs: int = 100
) -> dict[str, Any]:
    """Train on a data set, add the result to `folder/linear_probe.json` and return it. Same call, same bytes.

    The recipe is that of the networks (AdamW, cosine schedule, batches of 128, seed 42, no augmentation) with nothing
    between the normalised pixels and the softmax; the accuracy is the last epoch's.
    """
    import torch  # reading a record needs none of it

    from walkback.data import load
    from walkback.training.rows import evaluate, machine
    from walkback.training.setup import batches, set_rate, threads

    read_linear_probe(Path(folder))  # what is wrong with it is said before the training, not after
    spec = RunSpec(data=data, epochs=epochs)
    dataset, o, device = load(data, root), spec.optimiser, torch.device("cpu")
    linear = torch.nn.utils.skip_init(torch.nn.Linear, math.prod(dataset.input_shape), dataset.classes)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)  # convex: the start decides nothing, so none is drawn
    net = torch.nn.Sequential(torch.nn.Flatten(), linear)
    optimiser = torch.optim.AdamW(net.parameters(), lr=o.lr, weight_decay=o.weight_decay, fused=True)
    with threads(1):  # sums in one order: the same bytes on every run
        for epoch in range(1, epochs + 1):
            set_rate(optimiser, spec, epoch)
            for x, y in batches(spec, dataset, epoch, device):
                optimiser.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(net(x), y).backward()
                optimiser.step()
        right, loss = evaluate(net, dataset, dataset.test, device)
        train_right, train_loss = evaluate(net, dataset, dataset.train, device)
        made_on = machine(device)
    record = {
        "accuracy": float(right.double().mean()),
        "test_loss": loss,
        "train_accuracy": float(train_right.double().mean()),
        "train_loss": train_loss,
        "test_samples": len(right),
        "recipe": {
            "model": "softmax of a linear map of the normalised pixels, from zero",
            "epochs": epochs,
            "seed": spec.seed,
            "augment": spec.augment,
            **o.model_dump(),
        },
        "machine": made_on,
    }
    folder = Path(folder)
    path = linear_probe_file(folder)
    probes = {**read_linear_probe(folder), data: record}
    text = json.dumps({"schema": SCHEMA, "probes": dict(sorted(probes.items()))}, indent=2, allow_nan=False)
    try:
        write_whole(path, text + "\n", links=False)
    except OSError as error:
        raise FormatError(f"Expected to write {path}, but: {error}.") from None
    return record
