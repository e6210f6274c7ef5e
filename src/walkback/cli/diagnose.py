"""`walkback diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from walkback.cli import options
from walkback.cli.output import check_report_out, finish, stdout_to_stderr

Probes = Annotated[
    tuple[Literal["perturbation", "nudging", "fresh-b", "intrinsic"], ...],
    Parameter(consume_multiple=True, negative=()),
]


def diagnose(
    target: str,
    *,
    data: str | None = None,
    root: Path | None = None,
    headline_acc: options.Accuracies = (),
    frozen_acc: options.Accuracies = (),
    bp_acc: options.Accuracies = (),
    bp_frozen_acc: options.BPFrozen = (),
    edition: options.Edition | None = None,
    thresholds: options.Thresholds = None,
    probes: Probes = (),
    chunk: int | None = None,
    pairing: Literal["site", "shifted"] | None = None,
    method: options.Method = "",
    notes: options.Notes = "",
    out: options.ReportOut = None,
    device: str = "cpu",
    json: options.ReportJson = False,
) -> int:
    """Measure a trained network and judge it.

    Args:
        target: `module:function` that returns (model, batches) or a dict of `walkback.diagnose` arguments; or the
            folder of a run or bundle.
        data: For a run or bundle: a data set by name, or `module:function` that returns a Dataset or the evaluation
            batches.
        root: For a run or bundle: where the data set is.
        headline_acc: The accuracy you would publish, 0…1; several for several seeds.
        frozen_acc: The same with frozen random blocks; several for several seeds. Of a run, that of the control beside
            it.
        bp_acc: BP's accuracy on the task; where it does not beat frozen blocks either, D3 is not tested. Of a run,
            that of the BP runs beside it.
        edition: Which form of the protocol judges: three-check unless the function says otherwise; intrinsic runs
            every batch once more in float64.
        probes: Extra measurements: perturbation, nudging, fresh-b, intrinsic.
        chunk: Run batches in parts of at most so many samples: the same numbers in less memory.
        pairing: site (the default), or shifted: the credit of each site with the gradient of the one below, for
            comparing with published figures of FA.
        device: For a run or bundle: where to measure: cpu, cuda, mps.
    """
    from walkback.api import diagnose as measured
    from walkback.audit.target import diagnosed

    check_report_out(out)
    given = {
        "headline_acc": options.one_or_many(headline_acc),
        "frozen_baseline_acc": options.one_or_many(frozen_acc),
        "bp_acc": options.one_or_many(bp_acc),
        "bp_frozen_acc": options.one_or_many(bp_frozen_acc),
        "thresholds": options.limits(thresholds),
        "edition": edition,
        "probes": probes or None,
        "chunk": chunk,
        "pairing": pairing,
        "method_name": method or None,
        "notes": notes or None,
    }
    with stdout_to_stderr():
        report = measured(**diagnosed(target, given, data, root, device))
    return finish(report, out, json)
