"""Make the entries of our own runs for the public record: `python scripts/seed_registry.py results registry`.

Every run of a rule on a network of the papers under our own conventions is an entry of its own, judged with its frozen
control and with BP beside it. The code of an entry is the commit that put its record into this repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from walkback.audit.records import Record, Records, canonical, read_records
from walkback.audit.settings import OWN, RULES, worded
from walkback.replication.public_record import make_entry, read_entry
from walkback.report.formats.logged import judge


def wanted(run: Record) -> bool:
    """Is it a run of a rule, and not of a control, of one epoch, with a penalty or under another convention?"""
    spec = canonical(run.spec)
    ours = all(getattr(spec, name) == value for name, value in OWN.items())
    options = {} if spec.rule != "ep" else {"steps": 2}
    return ours and spec.epochs >= 30 and spec.scope == "all" and spec.rule in RULES and spec.rule_options == options


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
    bp = records.find(run.spec.model_copy(update={"rule": "bp", "rule_options": {}}))
    report = judge(
        run.report,
        headline_acc=run.accuracy,
        frozen_baseline_acc=control.accuracy,
        bp_acc=None if bp is None else bp.accuracy,
        method_name=RULES[run.spec.rule],
    )
    options = ", ".join(worded(canonical(run.spec).net_options))
    network = run.spec.net + (f" ({options})" if options else "") + f", {run.spec.epochs} epochs"
    data = run.spec.data + ("" if run.spec.augment or run.spec.data.startswith("teacher") else ", no augmentation")
    return make_entry(
        report,
        rule=RULES[run.spec.rule],
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
        path = folder / f"{run.path.name.lower().replace('_', '-')}.json"
        path.write_text(json.dumps(entry, ensure_ascii=False) + "\n", encoding="utf-8")
        print(read_entry(path).report.verdict_line, path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
