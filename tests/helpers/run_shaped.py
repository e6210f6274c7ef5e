"""Measures networks of several kinds while every shape in a signature of `walkback.measures` is checked."""

from __future__ import annotations

from jaxtyping import install_import_hook

CHECKED = ("formulas", "vectors", "rounding", "sums", "stream", "alignment", "accumulate", "probes")
install_import_hook([f"walkback.measures.{name}" for name in CHECKED], "beartype.beartype").__enter__()

import foreign  # noqa: E402
import walkback as wb  # noqa: E402
from walkback.measures import accumulate  # noqa: E402


def signs(trace: wb.Trace) -> list[object]:
    return [g.sign() for g in trace.grads]


probes = [wb.Perturbation(count=4, samples=32), wb.Nudging(samples=32)]
net, batches = wb.selftest.healthy(), wb.selftest.batches(3)
wb.diagnose(net, batches, credit=signs, probes=[*probes, "intrinsic"], edition="intrinsic")
wb.diagnose(net, batches, credit=signs, pairing="shifted", chunk=50)
wb.diagnose(wb.selftest.exploded(), batches, credit=signs, probes=[wb.Perturbation("data", count=4, samples=32)])
tokens = foreign.made("plain", tokens=True)
wb.diagnose(tokens, foreign.example(tokens=True), credit=signs, probes=probes)
with wb.Tracer(net) as tracer:
    meter = accumulate.Meter()
    meter.update(tracer.trace(*batches[0], credit=signs))
print("checked")
