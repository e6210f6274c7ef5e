"""The published D2 beside the intrinsic one, on trained and on constructed networks: results/intrinsic.

    python scripts/intrinsic_results.py --runs RUNS --root DATA

RUNS is a store of finished runs with their weights, as `walkback train` or `walkback audit` leave them; DATA is where
their data sets are. The bundles that ship with the package are always measured. One report per network is written, the
same as `walkback diagnose RUN --root DATA --edition intrinsic --probes fresh-b --out NAME.json` gives, and summary.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

import walkback as wb
from walkback.data import load
from walkback.selftest import network
from walkback.training.loop import probe_batches

HERE = Path(__file__).parent.parent
SHIPPED = HERE / "src" / "walkback" / "bundles"


def trained(folder: Path, root: Path | None) -> wb.Report | None:
    """The report of a run in the intrinsic edition, against its frozen control where that lies beside it."""
    bundle = wb.load_bundle(folder)
    saved = bundle.report()
    if saved is None:
        return None
    data, model = load(str(bundle.spec["data"]), root), bundle.model()
    return wb.diagnose(
        model,
        probe_batches(data, torch.device("cpu")),
        headline_acc=saved.headline_acc,
        frozen_baseline_acc=saved.frozen_baseline_acc or _control(bundle),
        credit=bundle.rule(model),
        method_name=saved.method,
        notes=_recipe(bundle.spec),
        edition="intrinsic",
        probes=("fresh-b",),
    )


def _control(bundle: wb.Bundle) -> float | None:
    if bundle.spec["scope"] == "frozen":
        return None
    for folder in bundle.path.parent.iterdir():
        if (folder / "report.json").exists():
            other = wb.load_bundle(folder)
            if other.spec["scope"] == "frozen" and {**other.spec, "scope": "all"} == dict(bundle.spec):
                report = other.report()
                return report.headline_acc if report is not None and isinstance(report.headline_acc, float) else None
    return None


def _recipe(spec: Any) -> str:
    parts = [str(spec[k]) for k in ("net", "data", "rule", "scope")]
    parts += [f"{spec['epochs']} epochs", f"seed {spec['seed']}", "augmented" if spec["augment"] else "not augmented"]
    return ", ".join(parts)


def constructed() -> Iterator[tuple[str, str, wb.Report]]:
    """(name, what it shows, report) of networks with known answers."""
    batches = wb.selftest.batches()

    def scaled(by: float) -> Any:
        def loss(logits: Tensor, y: Tensor) -> Tensor:
            return by * F.cross_entropy(logits.float(), y, reduction="none").to(logits.dtype)

        return loss

    def report(net: Any, data: Any = batches, **options: Any) -> wb.Report:
        return wb.diagnose(net, data, edition="intrinsic", **options)

    half = [(x.half(), y) for x, y in batches]
    sure, own = wb.selftest.confident()
    yield "healthy", "both pass", report(wb.selftest.healthy())
    yield "loss × 1e-6", "published wrong", report(wb.selftest.healthy(), loss=scaled(1e-6))
    yield "exploded, ‖h_L‖ 2e9", "published wrong", report(wb.selftest.exploded())
    yield "thirty-fold in each of 7 blocks", "published wrong", report(wb.selftest.creeping())
    yield "float16, loss × 1e-6", "both flag", report(wb.selftest.healthy().half(), half, loss=scaled(1e-6))
    yield "stream far from zero", "published wrong", report(wb.selftest.absorbing())
    yield "sure and right", "published wrong", report(sure, own)


def huge_batch() -> list[list[str]]:
    """‖g_L‖ of the mean loss over ever larger batches of one network, as scripts log it, against the floor of 1e-7."""
    net, rows = network(gain=10.0), []
    for size in (128, 1024, 8192):
        ((x, y),) = wb.selftest.batches(1, size)
        with wb.Tracer(net) as tracer:
            g = tracer.trace(x, y).grads[-1] / size
        raw = float(g.norm(dim=1).mean())
        ours = wb.diagnose(net, list(zip(x.split(128), y.split(128))), edition="intrinsic")
        rows.append([
            str(size), f"{raw:.1e}", _word(raw < 1e-7), f"{ours.values['g_norm_deepest']:.1e}",
            f"{ours.values['cosine_error']:.1e}", _word(ours.findings[1]["flagged"]),
        ])  # fmt: skip
    return rows


def by_confidence(folder: Path, root: Path | None) -> list[list[str]]:
    """Where rounding acts in a trained network: 1 − cos(g_L, g_L in float64) by how sure it is of the label."""
    bundle = wb.load_bundle(folder)
    model = bundle.model()
    wide = {name: p.double() if p.is_floating_point() else p for name, p in model.state_dict().items()}
    found = []
    with wb.Tracer(model) as tracer:
        for x, y in probe_batches(load(str(bundle.spec["data"]), root), torch.device("cpu")):
            low, high = tracer.trace(x, y), tracer.again(x.double(), y, wide)
            unsure = -torch.expm1(-high.losses)  # 1 − p of the label
            g, e = low.grads[-1].double(), high.grads[-1]
            off = 0.5 * (F.normalize(g, dim=1, eps=0) - F.normalize(e, dim=1, eps=0)).square().sum(1)
            found.append(torch.stack([unsure, off, (g.norm(dim=1) / 128 < 1e-8).double()]))
    unsure, off, under = torch.cat(found, 1)
    rows, edges = [], [0.0, 1e-7, 1e-6, 1e-4, 1e-2, 1.1]
    for low, high in pairwise(edges):
        here = (unsure >= low) & (unsure < high)
        if here.any():
            name = f"{low:g} … {min(high, 1):g}"
            rows.append([name, str(int(here.sum())), f"{off[here].mean():.1e}", f"{under[here].mean():.0%}"])
    return rows


def _word(flagged: bool | None) -> str:
    return {True: "flags", False: "ok", None: "not tested"}[flagged]


def row(name: str, report: wb.Report) -> list[str]:
    """One line of the summary."""
    published = wb.judge(report, "three-check")
    layers = report.per_layer
    cosine, clamped = layers["cosine"] or [], layers["cosine_clamped"] or []
    clamp = max((abs(a - b) for a, b in zip(cosine, clamped) if a is not None and b is not None), default=None)
    absorbed = max((a for a in layers["absorption"] or [] if a is not None), default=None)
    share = max((a for a in layers["epsilon_share"] or [] if a is not None), default=None)
    growth, deepest = report.values["growth"], report.values["g_norm_deepest"]
    return [
        name, _sci(growth), _sci(deepest), _word(published.findings[1]["flagged"]), _sci(report.values["cosine_error"]),
        _word(report.findings[1]["flagged"]), _sci(clamp), "–" if share is None else f"{share:.0%}", _sci(absorbed),
        *(" ".join(r.failed) or r.verdict for r in (published, report)),
    ]  # fmt: skip


def _sci(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


HEAD = [
    "network", "growth", "‖g_L‖", "published D2", "cosine off by rounding", "intrinsic D2", "off by the clamp",
    "ε share", "absorbed", "three-check", "intrinsic",
]  # fmt: skip


def main() -> None:
    """Measure everything and write it."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=Path, help="a store of finished runs")
    asked.add_argument("--root", type=Path, help="where the data sets are")
    asked.add_argument("--out", type=Path, default=HERE / "results" / "intrinsic")
    args = asked.parse_args()
    folders = sorted(SHIPPED.iterdir()) + (sorted(args.runs.iterdir()) if args.runs else [])
    rows, sites, sure = [], [], []
    for folder in folders:
        if not (folder / "report.json").exists() or not (folder / "weights.safetensors").exists():
            continue
        report = trained(folder, None if folder.parent == SHIPPED else args.root)
        if report is None:
            continue
        name = f"teacher-{folder.name}" if folder.parent == SHIPPED else folder.name
        report.save(args.out / f"{name}.json")
        rows.append(row(report.remark, report))
        sites += _site_rows(report)
        spec = wb.load_bundle(folder).spec
        if spec["data"] == "cifar10" and spec["scope"] == "all":
            there = by_confidence(folder, args.root)
            sure += [[report.remark, *cells] for cells in there]
    made = []
    for name, shows, report in constructed():
        report.save(args.out / f"constructed-{''.join(c if c.isalnum() else '-' for c in name)}.json")
        made.append([*row(name, report)[:-2], shows])
    text = [
        "# The published D2 beside the intrinsic one",
        "",
        "Written by `scripts/intrinsic_results.py`, which says with what command. What the columns mean is in",
        f"docs/intrinsic.md. torch {torch.__version__}, float32 on the CPU, 1,024 test samples of each data set.",
        "",
        "## Trained networks",
        "",
        _markdown(HEAD, rows),
        "",
        "## Constructed networks",
        "",
        _markdown([*HEAD[:-2], "shows"], made),
        "",
        "## One network, ever larger batches",
        "",
        _markdown(
            ["batch", "‖g_L‖ of the mean loss", "< 1e-7", "‖g_L‖ ÷ 128 (ours)", "cosine off", "intrinsic D2"],
            huge_batch(),
        ),
        "",
        "## Where rounding acts",
        "",
        "Samples by 1 − p of their label (float64), how far g_L is from float64, and who is under "
        "F.cosine_similarity's ε.",
        "",
        _markdown(["network", "1 − p", "samples", "mean 1 − cos(g_L, float64)", "under ε"], sure),
        "",
        "## Cosines and their nulls",
        "",
        "null: the band of the same credit turned at random; fresh B: the range of a fresh draw, from 20 draws.",
        "",
        _markdown(["network", "site", "cosine", "95 %", "null", "fresh B", "reads"], sites),
    ]
    (args.out / "summary.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def _site_rows(report: wb.Report) -> list[list[str]]:
    layers, fresh = report.per_layer, report.controls
    rows = []
    for site, cosine in enumerate(layers["cosine"] or []):
        low, high, band = ((layers[k] or {site: None})[site] for k in ("cosine_low", "cosine_high", "null_high"))
        ends = [fresh[k][site] for k in ("fresh_low", "fresh_high")] if "fresh_low" in fresh else [None, None]
        rows.append([
            report.remark, str(site), "–" if cosine is None else f"{cosine:+.3f}",
            "–" if low is None or high is None else f"{low:+.3f}…{high:+.3f}", "–" if band is None else f"±{band:.3f}",
            "–" if None in ends else f"{ends[0]:+.3f}…{ends[1]:+.3f}", report.reads_as(site) or "–",
        ])  # fmt: skip
    return rows


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return tabulate(rows, head, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    main()
