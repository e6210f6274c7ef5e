"""`walkback diagnose`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from walkback.cli.options import (
    FLAT,
    Claiming,
    Device,
    Flag,
    LargestWeights,
    Reporting,
    Root,
    Sites,
    Whole,
    Words,
    limits,
    sites_of,
    weights_bytes,
)
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
    root: Root = None,
    claiming: Annotated[Claiming, FLAT] = Claiming(),  # noqa: B008
    probes: Probes = (),
    chunk: Whole | None = None,
    sites: Sites = (),
    pairing: Literal["site", "shifted"] | None = None,
    gamma_over: Literal["0..L-1", "0..L"] | None = None,
    deep_over: Literal["1..L", "1..L-1"] | None = None,
    depth: Flag = False,
    save: Flag = False,
    primary: Literal["D3", "D3-outcome"] | None = None,
    device: Device = "cpu",
    split: Literal["test", "train"] = "test",
    probe_set: Whole = 0,
    trust: Words = (),
    largest_weights: LargestWeights = None,
    reporting: Annotated[Reporting, FLAT] = Reporting(),  # noqa: B008
) -> int:
    """Measure a trained network and judge it.

    Args:
        target: `module:function` that returns (model, batches) or a dict of `walkback.diagnose` arguments; or the
            folder of a run or bundle.
        data: For a run or bundle, as --root and --device are: a data set by name, or `module:function` that returns a
            Dataset or the evaluation batches.
        probes: Extra measurements: perturbation, nudging, fresh-b, intrinsic.
        chunk: Run batches in parts of at most so many samples: the same numbers in less memory.
        pairing: site (the default), or shifted: the credit of each site with the gradient of the one below, for
            comparing with published figures of FA.
        gamma_over: The sites whose cosines Γ averages: 0..L-1 (the default) or 0..L.
        deep_over: Those of the deep mean: 1..L (the default; without L where its credit is exact) or 1..L-1.
        depth: For a run or bundle: measure what its trained blocks are worth without training a control. Readouts are
            refitted on the training split and compared on the test split: D3-outcome.
        save: With --depth: keep it in the record of the run.
        primary: Which check of depth decides where both are there, named before measuring: D3 (the default) or
            D3-outcome.
        split: For a run or bundle: measure on samples of the test or of the training split.
        probe_set: For a run or bundle: which probe set of 1,024 samples of that split, from 0; 0 is every run's own.
        trust: For a run or bundle: modules that its spec may name and that you trust; nothing else is imported.
    """
    from walkback.api import diagnose as measured
    from walkback.audit.target import diagnosed, keep_measured_depth

    check_report_out(reporting.out)
    if save and not depth:
        raise InputError("Expected --save together with --depth: it keeps what --depth measures in the run's record.")
    given = {
        **claiming.accuracies(),
        "thresholds": limits(claiming.thresholds),
        "edition": claiming.edition,
        "probes": probes or None,
        "chunk": chunk,
        "pairing": pairing,
        "gamma_over": gamma_over,
        "deep_over": deep_over,
        "sites": sites_of(sites),
        "method_name": claiming.method or None,
        "notes": claiming.notes or None,
    }
    with stdout_to_stderr():
        probe = (split, probe_set)
        more = primary, probe, claiming.test_samples, (largest := weights_bytes(largest_weights))
        report = measured(**diagnosed(target, given, data, root, device, trust, depth, *more))
        if save:
            keep_measured_depth(target, report, trust, largest)
    return finish(report, reporting)
