"""Draws floor.png: what a clamped cosine reports as the stream grows, beside the true value. Needs matplotlib.

python docs/img/floor.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import walkback as wb


def half_aligned(trace: wb.Trace) -> list[Tensor]:
    """A credit with a cosine of about 0.7 to the true gradient at every site."""
    generator = torch.Generator().manual_seed(0)
    credits = []
    for g in trace.grads:
        noise = torch.randn(g.shape, generator=generator) / g.shape[1] ** 0.5
        credits.append(g / g.norm(dim=1, keepdim=True) + noise)
    return credits


def main() -> None:
    """Measure networks that explode more and more, and draw one point for each."""
    points = []
    for power in range(0, 25):
        model = wb.selftest.network(gain=10 ** (power / 10))
        m = wb.measure(model, wb.selftest.batches(), credit=half_aligned)
        points.append((m.g_norm[-1], m.cosine[-1], m.cosine_clamped[-1], m.below_eps[-1]))
    g, cosine, clamped, _ = zip(*points)
    fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    ax.axvspan(min(g) / 3, 1e-7, color="0.92", lw=0)
    ax.axvline(1e-7, color="0.4", lw=1)
    ax.text(0.8e-7, 0.93, "D2 flags here", ha="left", color="0.3")
    ax.plot(g, cosine, "o-", color="#0072b2", label="walkback (float64, no clamp)", ms=4)
    ax.plot(g, clamped, "s--", color="#d55e00", label="F.cosine_similarity, ε = 1e-8", ms=4)
    ax.set(xscale="log", xlabel="‖g_L‖ (per-sample norm ÷ 128)", ylabel="reported cosine at the last site", ylim=(0, 1))
    ax.invert_xaxis()
    ax.legend(frameon=False, loc="lower left")
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(Path(__file__).with_name("floor.png"), dpi=160)
    for row in points:
        print("  ".join(f"{x:.3g}" for x in row))


if __name__ == "__main__":
    main()
