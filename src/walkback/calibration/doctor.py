"""Is the instrument sound on this machine? Versions, devices, data sets, closed forms, networks with known verdicts."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from walkback import selftest
from walkback.api import diagnose
from walkback.calibration.products import bfloat16_products
from walkback.data import inventory
from walkback.training.setup import threads
from walkback.version import __version__


@dataclass(frozen=True)
class Examination:
    """What was found; `ok` where closed forms are met to 1e-9 and every known network gets its verdict.

    All of these are in float32 and float64, so they can be right where products in bfloat16 are not.
    """

    walkback: str
    python: str
    torch: str
    devices: list[str]
    threads: int
    data: dict[str, dict[str, Any]]
    closed_form_error: dict[str, float]
    known_networks: dict[str, bool]
    bfloat16: str | None  # what is wrong with its products here
    ok: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rows = list(self._rows())
        width = max(len(name) for name, _ in rows)
        absent = {name: here["how_to_get"] for name, here in self.data.items() if not here["found"]}
        advice = [line for name, how in absent.items() for line in (f"To get {name}:", *(f"  {h}" for h in how))]
        sound = "The instrument is sound." if self.ok else "The instrument is NOT sound on this machine: do not use it."
        return "\n".join([*(f"{name:{width}}  {text}" for name, text in rows), *advice, sound])

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "walkback", self.walkback
        yield "python", f"{self.python} on {platform.system()} {platform.machine()}"
        yield "torch", f"{self.torch}, {self.threads} threads"
        yield "devices", ", ".join(self.devices)
        for name, here in self.data.items():
            needs = "; to read it: pip install 'walkback[data]'" if here["needs"] else ""
            where = f"{here['where']}{needs}" if here["found"] else f"not found in {', '.join(here['looked_in'])}"
            yield f"data: {name}", where
        for name, error in self.closed_form_error.items():
            yield f"closed form: {name}", f"relative error {error:.1e}"
        for name, right in self.known_networks.items():
            yield f"known network: {name}", "as expected" if right else "WRONG VERDICT"
        yield "bfloat16 products", "work" if self.bfloat16 is None else f"DO NOT WORK: {self.bfloat16}"


def examine(root: Path | None = None) -> Examination:
    """Return the state of this installation; data sets are looked for under `root`."""
    data = inventory(root)
    with threads(1):  # the networks are tiny: on a busy machine threads only wait for each other
        errors = selftest.closed_form_errors()
        verdicts = {
            case.name: diagnose(case.model, selftest.batches(), case.headline_acc, case.frozen_acc).failed
            == case.three_check
            for case in selftest.cases()
        }
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return Examination(
        walkback=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        devices=devices,
        threads=torch.get_num_threads(),
        data=data,
        closed_form_error=errors,
        known_networks=verdicts,
        bfloat16=bfloat16_products(),
        ok=max(errors.values()) < 1e-9 and all(verdicts.values()),
    )
