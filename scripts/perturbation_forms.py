"""ρ_pert in forms that the documents leave open, on finished runs: is one of them half the cosine, as published?

    python scripts/perturbation_forms.py STORE

STORE has finished runs of ResMLP with their weights. Writes evidence/perturbation-forms.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor

import walkback as wb
from walkback.audit.records import read_records
from walkback.audit.settings import RULES
from walkback.audit.wording import command
from walkback.network.loss import cross_entropy
from walkback.training.loop import probe_batches

BATCHES, DIRECTIONS, DEEP = 4, 64, range(1, 5)
HEAD = """# ρ_pert beside the cosine, form by form

Published of DFA under λ = 1e-2: cosine +0.155, ρ_pert +0.080, half of it; of BP's own gradient on a BP network: +0.997.
The documents don't say how long a step is, nor in which precision.

Means over sites 1 to 4 of 512 test samples and 64 isotropic directions. Step: the length of εv, as a share of ‖h‖ or
alone. Per sample: a correlation over directions for each sample, then the mean; pooled: one over samples and
directions."""
TAIL = """In float32, a short step of one length for all networks is lost in rounding where the gradient is small: it
halves DFA's ρ_pert and leaves BP's. A step of 0.0016 is that of ε = 1e-4 along normal directions. Neither a long step
nor pooling halves it."""


def main(store: str) -> None:
    data, runs = wb.data.load("cifar10"), list(read_records(store))
    columns = {}
    for run in runs:
        for what in ("gradient",) if run.spec.rule == "bp" else ("credit", "gradient"):
            name = f"{RULES[run.spec.rule]}, λ = {run.spec.penalty:g}: {what}"
            columns[name] = forms(wb.load_bundle(run.path), data, what)
    names = next(iter(columns.values()))
    rows = [[form, *(f"{column[form]:+.3f}" for column in columns.values())] for form in names]
    table = tabulate(rows, ["step, precision, how", *columns], "github", disable_numparse=True)
    made = "\n".join(f"- `{command(run.spec, [run.spec.seed], Path('STORE'))}`" for run in runs)
    where = ", ".join(runs[0].machine[key] for key in ("torch", "machine", "blas") if key in runs[0].machine)
    how = f"Made by `python scripts/perturbation_forms.py STORE` ({where}) from:"
    text = f"{HEAD}\n\n{table}\n\n{TAIL}\n\n{how}\n\n{made}\n"
    Path("evidence/perturbation-forms.md").write_text(text, encoding="utf-8")
    print(text)


def forms(bundle: wb.Bundle, data: wb.data.Dataset, what: str) -> dict[str, float]:
    """Return the mean over deep sites of the cosine of a signal, the credit or the gradient, and of each form."""
    sums: dict[str, list[float]] = {}
    net = bundle.model()
    rule, twice = bundle.rule(net), bundle.model().double()
    batches = probe_batches(data, torch.device("cpu"))[:BATCHES]
    x, y = (torch.cat([batch[i] for batch in batches]) for i in (0, 1))
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(x, y, credit=rule)
    for site in DEEP:
        h, g = trace.states[site], trace.grads[site].double()
        a = g if what == "gradient" else trace.credits[site].double()
        v = torch.randn(DIRECTIONS, *h.shape, generator=torch.Generator().manual_seed(site), dtype=torch.float64)
        v = v / v.norm(dim=-1, keepdim=True)
        for name, value in one_site({"float32": net, "float64": twice}, site, h, g, a, y, v).items():
            sums.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def one_site(nets: dict, site: int, h: Tensor, g: Tensor, a: Tensor, y: Tensor, v: Tensor) -> dict[str, float]:
    """Return cosine and every form at one site: states and signals (B, d), unit directions (n, B, d)."""
    out = {"cosine": float(torch.cosine_similarity(a, g, dim=-1, eps=0).nanmean())}
    length = h.double().norm(dim=-1, keepdim=True)
    steps = {f"{share:g} ‖h‖": share * length for share in (1e-3, 0.1, 1.0)}
    steps |= {f"{step:g}": torch.full_like(length, step) for step in (1e-3, 1.6e-3, 2.4e-3, 1e-2, 0.1)}
    for name, step in steps.items():
        for dtype in ("float64",) if "h" in name else ("float32", "float64"):
            moved = step * v
            told, changed = (a * moved).sum(-1), changes(nets[dtype], site, h, y, moved)
            out[f"{name}, {dtype}, per sample"] = float(correlation(told, changed, 0).nanmean())
            if dtype == "float64" and name in ("0.001 ‖h‖", "0.1"):
                out[f"{name}, {dtype}, pooled"] = float(correlation(told.flatten(), changed.flatten(), 0))
    return out


@torch.no_grad()
def changes(net: torch.nn.Module, site: int, h: Tensor, y: Tensor, moved: Tensor) -> Tensor:
    """Return loss(h + εv) − loss(h), (n, B), in the precision of the network."""
    dtype = next(net.parameters()).dtype

    def losses(state: Tensor) -> Tensor:
        for block in net.blocks[site:]:
            state = state + block(state)
        return cross_entropy(net.out_head(net.out_ln(state)), y)

    start = losses(h.to(dtype))
    return torch.stack([(losses((h.double() + step).to(dtype)) - start).double() for step in moved])


def correlation(u: Tensor, w: Tensor, dim: int) -> Tensor:
    u, w = u - u.mean(dim, keepdim=True), w - w.mean(dim, keepdim=True)
    return (u * w).sum(dim) / (u.norm(dim=dim) * w.norm(dim=dim))


if __name__ == "__main__":
    main(sys.argv[1])
