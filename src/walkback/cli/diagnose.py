"""`walkback diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from walkback.cli import options
from walkback.cli.output import check_report_out, finish, stdout_to_stderr
from walkback.errors import InputError

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
    test_samples: options.TestSamples = None,
    edition: options.Edition | None = None,
    thresholds: options.Thresholds = None,
    probes: Probes = (),
    chunk: options.Whole | None = None,
    sites: options.Sites = (),
    pairing: Literal["site", "shifted"] | None = None,
    gamma_over: Literal["0..L-1", "0..L"] | None = None,
    deep_over: Literal["1..L", "1..L-1"] | None = None,
    depth: options.Flag = False,
    save: options.Flag = False,
    primary: options.Primary = None,
    method: options.Method = "",
    notes: options.Notes = "",
    out: options.ReportOut = None,
    require: options.Require = (),
    junit: options.Junit = None,
    device: str = "cpu",
    split: Literal["test", "train"] = "test",
    probe_set: options.Whole = 0,
    trust: options.Words = (),
    verbose: options.Verbose = False,
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
        gamma_over: The sites whose cosines Γ averages: 0..L-1 (the default) or 0..L.
        deep_over: Those of the deep mean: 1..L (the default; without L where its credit is exact) or 1..L-1.
        depth: For a run or bundle: measure what its trained blocks are worth without training a control. Readouts are
            refitted on the training split and compared on the test split: D3-outcome.
        save: With --depth: keep it in the record of the run.
        device: For a run or bundle: where to measure: cpu, cuda, mps.
        split: For a run or bundle: measure on samples of the test or of the training split.
        probe_set: For a run or bundle: which probe set of 1,024 samples of that split, from 0; 0 is every run's own.
        trust: For a run or bundle: modules that its spec may name and that you trust; nothing else is imported.
    """
    from walkback.api import diagnose as measured
    from walkback.audit.target import diagnosed, kept

    check_report_out(out)
    if save and not depth:
        raise InputError("Expected --save together with --depth: it keeps what --depth measures in the run's record.")
    given = {
        **options.claimed(headline_acc, frozen_acc, bp_acc, bp_frozen_acc),
        "thresholds": options.limits(thresholds),
        "edition": edition,
        "probes": probes or None,
        "chunk": chunk,
        "pairing": pairing,
        "gamma_over": gamma_over,
        "deep_over": deep_over,
        "sites": options.sites_of(sites),
        "method_name": method or None,
        "notes": notes or None,
    }
    with stdout_to_stderr():
        probe = (split, probe_set)
        report = measured(**diagnosed(target, given, data, root, device, trust, depth, primary, probe, test_samples))
        if save:
            kept(target, report, trust)
    return finish(report, out, json, require, junit, verbose)
