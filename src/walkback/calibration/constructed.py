"""Constructed networks as rows: measured as a user would, on two probe sets."""

from __future__ import annotations

from walkback.api import measure
from walkback.calibration.products import require_products
from walkback.calibration.rows import Row, row
from walkback.calibration.zoo import Drawn, _dtype, _task, name_of, specimen


def row_of(one: Drawn) -> Row:
    """Make a specimen, measure it as a user would on two probe sets, and return its row."""
    require_products(one[1])  # else the process would die without a word
    s = specimen(*one)
    x, y = _task()["other probe"]
    other = [(a.to(_dtype(s.net)), b) for a, b in zip(x.split(128), y.split(128))]
    measured = [measure(s.net, s.batches, credit=s.credit, probes=("intrinsic",))]
    measured.append(measure(s.net, other, probes=("intrinsic",)))
    facts = {name: getattr(s, name) for name in ("reported", "off", "rounded", "gain", "drifts")}
    return row(key_of(one), measured, accuracy=s.headline_acc, frozen=s.frozen_acc, **facts)


def key_of(one: Drawn) -> str:
    """Return the name of a specimen's row."""
    return f"{name_of(*one)}, {one[-1]}"
