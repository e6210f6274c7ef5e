"""`python -m protocol.smoke_test`: networks with known answers and shipped bundles, both editions.

Exits non-zero on a miss.
"""

import sys

import torch

from walkback import selftest
from walkback.api import diagnose
from walkback.report.report import DiagnosticReport


def main() -> int:
    """Print one line per network and edition; 1 when any verdict is not the known one."""
    misses = 0
    for case in [*selftest.cases(), *selftest.shipped_cases()]:
        for edition, known in (("three-check", case.three_check), ("four-diagnostic", case.four_diagnostic)):
            batches = case.eval_batches or selftest.batches()
            report = diagnose(case.model, batches, case.headline_acc, case.frozen_acc, case.credit, edition=edition)
            if edition == "four-diagnostic":  # in its own words
                report = DiagnosticReport.of(report)
            verdict = "walked back" if known else "trustworthy" if edition == "four-diagnostic" else "passes"
            right = (report.failed, report.verdict) == (known, verdict) and case.submode in (None, report.submode)
            misses += not right
            said = ", ".join(report.failed) or report.verdict
            print(
                f"{'ok  ' if right else 'MISS'}  {case.name:42} {edition:16} {said:14} {report.submode or ''}".rstrip()
            )
    print("every verdict as known" if not misses else f"{misses} verdicts differ from the known ones")
    return 1 if misses else 0


if __name__ == "__main__":
    torch.set_num_threads(1)  # the networks are tiny: on a busy machine threads only wait for each other
    sys.exit(main())
