"""Prints, as JSON, what Walkback finds on the CPU, and on another device with float64 and without."""

from __future__ import annotations

import json
import tempfile
from typing import Any

import torch

import walkback as wb
from far import FarMode, moved, register
from walkback.data.dataset import Dataset, Split
from walkback.network import values
from walkback.training import loop

DEVICE = "far:0"
FEW = [wb.Perturbation(count=4, samples=32), wb.Nudging(samples=32)]
# Where the device has float64, and where not, what is trained there.
TRAINED = {
    "float64": ("bp", "dfa", "ep", "credit-bridge"),
    "no float64": ("dfa",),
}
ALONG_DATA = [wb.Perturbation("data", count=4, samples=32)]


def setting(device: str) -> tuple[torch.nn.Module, Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A network, a rule set up for it, and two batches."""
    torch.manual_seed(0)
    net, rule = wb.nets.build("resmlp", (8,), 4, width=16, depth=2), wb.rules.make("dfa")
    x, y = torch.randn(256, 8), torch.randint(4, (256,))
    wb.rules.set_up(rule, net, x, 4, torch.Generator().manual_seed(0))
    batches = [(x[:128].to(device), y[:128].to(device)), (x[128:].to(device), y[128:].to(device))]
    return moved(net, device), moved(rule, device), batches


def trained(device: str, rules: tuple[str, ...]) -> dict[str, Any]:
    """One epoch of each rule."""
    torch.manual_seed(0)
    x, y = torch.randn(256, 12), torch.randint(4, (256,))
    data = Dataset("tiny", Split(x, y), Split(x[:128], y[:128]), 4)
    out = {}
    for rule in rules:
        options: dict[str, Any] = {"net_options": {"width": 8, "depth": 2}, "data": "teacher", "epochs": 1}
        spec = wb.training.spec.RunSpec(rule=rule, **options)
        with tempfile.TemporaryDirectory() as folder:
            bundle = loop.train(spec, folder, data=data, device=device)
            out[rule] = {"row": bundle.trajectory()[-1], "report": bundle.report().to_dict()}
    return out


def found(device: str, mode: FarMode | None, rules: tuple[str, ...]) -> dict[str, Any]:
    """Reports, a certificate and training, and how many numbers left the device for the first report."""
    net, rule, batches = setting(device)
    report = wb.diagnose(net, batches, credit=rule).to_dict()
    left = sum(mode.left.values()) if mode else 0
    return {
        "left": left,
        "report": report,
        "probes": wb.diagnose(net, batches, credit=rule, probes=FEW).to_dict(),
        "along data": wb.diagnose(net, batches, credit=rule, probes=ALONG_DATA).to_dict(),
        "intrinsic": wb.diagnose(net, batches, credit=rule, edition="intrinsic").to_dict(),
        "certificate": str(wb.certify(rule, net, batches[0])),
        "trained": trained(device, rules),
    }


if __name__ == "__main__":
    register()
    loop.FRESH_DRAWS, loop.PROBES = 2, FEW  # type: ignore[assignment]
    out = {"cpu": found("cpu", None, TRAINED["float64"])}
    for name in TRAINED:
        if name == "no float64":
            values.NO_FLOAT64.add("far")
        with FarMode(DEVICE) as mode:
            out[name] = found(DEVICE, mode, TRAINED[name])
    print(json.dumps(out))
