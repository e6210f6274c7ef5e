"""Make the entries of our own runs: `python scripts/seed_registry.py results evidence/runs registry`.

Every run of a rule without a penalty on a network of the papers is an entry of its own, judged with its frozen control
and with BP beside it; conventions that are not our own stand in brackets after the rule. The code of an entry is the
commit that put its record into this repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from walkback.audit.records import Record, Records, canonical, read_records
from walkback.audit.settings import OWN, RULES
from walkback.audit.wording import worded
from walkback.replication.public_record import make_entry, read_entry
from walkback.report.formats.logged import judge

# The fingerprint of CIFAR-10's samples in the JPEG copy that the runs under results/ were trained on.
JPEG_COPY = "eed96867c849ac61"


def wanted(run: Record) -> bool:
    """Is it a run of a rule, and not of a control, of few epochs, with a penalty or with options of the rule?"""
    spec = canonical(run.spec)
    options = {} if spec.rule != "ep" else {"steps": 2}
    plain = spec.rule in RULES and spec.rule_options == options and not spec.penalty
    return plain and spec.epochs >= 30 and spec.scope == "all"


def commit_of(path: Path) -> str:
    done = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def entry_of(records: Records, run: Record) -> dict | None:
    control = records.control(run)
    if control is None or "probe_hash" not in run.report.conditions:
        return None
    bp = records.find(run.spec.model_copy(update={"rule": "bp", "rule_options": {}, **OWN}))
    report = judge(
        run.report,
        headline_acc=run.accuracy,
        frozen_baseline_acc=control.accuracy,
        bp_acc=None if bp is None else bp.accuracy,
        method_name=RULES[run.spec.rule],
    )
    spec = canonical(run.spec)
    rule = RULES[spec.rule] + (f" ({', '.join(spec.conventions)})" if spec.conventions else "")
    options = ", ".join(worded(spec.net_options))
    network = run.spec.net + (f" ({options})" if options else "") + f", {run.spec.epochs} epochs"
    data = spec.data + (" (JPEG copy)" if report.conditions["probe_hash"] == JPEG_COPY else "")
    data += "" if spec.augment or spec.data.startswith("teacher") else ", no augmentation"
    return make_entry(
        report,
        rule=rule,
        network=network,
        data=data,
        spec=run.spec.model_dump(mode="json"),
        commit=commit_of(run.path),
        by="The Walkback authors",
    )


def main(results: Path, folder: Path) -> None:
    records = read_records(results)
    folder.mkdir(parents=True, exist_ok=True)
    for run in filter(wanted, records):
        entry = entry_of(records, run)
        if entry is None:
            continue
        # One spec on other images of the same name is another entry.
        data = entry["data_fingerprint"][:8]
        path = folder / f"{run.path.name.lower().replace('_', '-')}-{data}.json"
        path.write_text(json.dumps(entry, ensure_ascii=False) + "\n", encoding="utf-8")
        print(read_entry(path).report.verdict_line, path.name)


if __name__ == "__main__":
    for place in sys.argv[1:-1]:
        main(Path(place), Path(sys.argv[-1]))
