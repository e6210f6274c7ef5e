"""`walkback registry`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from walkback.cli.options import Flag
from walkback.cli.output import print_json, print_text, warn, write
from walkback.errors import InputError


def registry(
    action: Literal["check", "page", "add"],
    folder: Path = Path("registry"),
    *,
    out: Path = Path("registry.html"),
    report: Path | None = None,
    name: str = "",
    rule: str = "",
    network: str = "",
    data: str = "",
    spec: Path | None = None,
    commit: str = "",
    url: str = "",
    paper_title: str = "",
    paper_url: str = "",
    by: str = "",
    json: Flag = False,
) -> int:
    """Keep a public record of audits: check a folder of entries, make its page, or add a report to it.

    Args:
        action: check: every entry against its schema, its data and its own numbers, exit 1 where one does not hold;
            page: the same, and one HTML file; add: make an entry of a report.
        folder: Of the entries, one JSON file each.
        out: With page: the file, which needs no network.
        report: With add: a report as JSON.
        name: With add: of the entry and its file, such as dfa-resmlp-cifar10-s42.
        rule: With add: the learning rule.
        network: With add: the network's name and size.
        data: With add: the data set.
        spec: With add: a JSON or TOML file with everything that decides the training, such as a run's spec.json.
        commit: With add: of the training code, all 40 digits.
        url: With add: where that code is.
        paper_title: With add: of the paper that claims the number.
        paper_url: With add: its address.
        by: With add: who submits it.
        json: Print the rows and problems as JSON.
    """
    from walkback.replication import public_record
    from walkback.report.report import Report

    if action == "add":
        needed = {"report": report, "name": name, "rule": rule, "network": network, "data": data, "spec": spec}
        if missing := [word for word, value in {**needed, "commit": commit}.items() if not value]:
            raise InputError(f"Expected --{missing[0]} to add an entry, but got none.")
        assert report is not None
        assert spec is not None
        paper = {"title": paper_title, "url": paper_url} if paper_title or paper_url else None
        made = public_record.make_entry(
            Report.load(report),
            **{"rule": rule, "network": network, "data": data, "commit": commit, "url": url or None, "by": by or None},
            spec=public_record.read_spec(spec),
            paper=paper,
        )
        path = folder / f"{name}.json"
        public_record.add_entry(path, made)
        print_text(f"entry: {path}")
        return 0
    record = public_record.read_public_record(folder)
    for file, reason in record.problems:
        warn(f"not used: {file}: {reason}")
    if action == "page":
        if out.suffix != ".html":
            raise InputError(f"Expected --out to end in .html, the page is one file, but got {out}.")
        write(out, public_record.page(record))
    written = f"\npage: {out}" if action == "page" else ""
    print_json(record.to_dict()) if json else print_text(f"{record}{written}")
    return 1 if record.problems else 0
