"""`walkback evidence`."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from walkback.cli.options import Flag
from walkback.cli.output import print_json, print_text, warn, write
from walkback.errors import InputError, shown

if TYPE_CHECKING:
    from walkback.report.table import Table

FORMS = {".md": "to_markdown", ".tex": "to_latex", ".csv": "to_csv", ".json": "to_dict", ".txt": "__str__"}


def evidence(
    name: str | None = None,
    *,
    folder: Annotated[Path, Parameter(name="--from")] = Path("results"),
    out: Path | None = None,
    list: Flag = False,
    root: Path | None = None,
    data: str | None = None,
    as_published: Flag = False,
    json: Flag = False,
) -> int:
    """Make the papers' tables from finished runs, beside the published figures.

    Args:
        name: A table (see --list), or all.
        folder: Where the runs are, however deep.
        out: Also write it there: .md, .tex, .csv, .json or .txt; or a folder, with one .md per table and an index.
        list: Name the tables.
        root: Only for linear-probe: train it on the data set found there, and record it in the folder of the runs.
        data: Only for linear-probe: train it on this data set (cifar10 by default).
        as_published: Show runs under the papers' conventions (walkback audit as-published), read in the papers' way.
        json: Print as JSON.
    """
    from walkback.audit.records import read_records
    from walkback.replication.summaries import names as names_of
    from walkback.replication.summaries import others, summary
    from walkback.replication.tables import TABLES, front_page

    names = names_of()
    if list:
        width = max(len(table) for table in names)
        print_json(names) if json else print_text("\n".join(f"{n:{width}}  {text}" for n, text in names.items()))
        return 0
    if name is None:
        raise InputError(f"Expected a table to show: one of {', '.join(names)}, or all.")
    _check(out, name)
    if root is not None or data is not None:
        if name != "linear-probe":
            raise InputError(
                f"Expected --root and --data only with linear-probe, which is trained, but got {shown(name)}."
            )
        from walkback.replication.tables.linear_probe import train_linear_probe

        train_linear_probe(data or "cifar10", root, folder)
    records = read_records(folder)
    every = names if as_published else TABLES
    tables = [summary(one, records, as_published) for one in (every if name == "all" else [name])]
    for problem in records.problems:
        warn(f"not used: {problem.path}: {problem.reason}")
    if not as_published and name in (*TABLES, "all") and (hidden := others(records)):
        warn(f"{hidden} of {len(records)} runs are under the papers' conventions: --as-published shows them")
    if not records:
        warn(f"no finished runs under {folder}: what would train them is listed under Missing")
    if out is not None and out.suffix:
        write(out, _rendered(tables, out.suffix))
    elif out is not None:
        for table in tables:
            write(out / f"{table.name}.md", table.to_markdown())
        if name == "all":
            write(out / "index.md", front_page(tables, records))
    if json:
        found = [table.to_dict() for table in tables]
        problems = [{"path": str(p.path), "reason": p.reason} for p in records.problems]
        print_json({"tables": found, "problems": problems} if name == "all" else {**found[0], "problems": problems})
    elif name == "all" and out is not None:
        print_text(f"{len(tables)} tables from {len(records)} runs: {out}")
    else:
        print_text(_rendered(tables, ".txt"))
    return 0


def _check(out: Path | None, name: str) -> None:
    """Refuse a file that would not be written, before tables are made."""
    if out is not None and out.suffix and out.suffix not in FORMS:
        raise InputError(f"Expected --out to be a folder or to end in {', '.join(FORMS)}, but got {shown(str(out))}.")
    if out is not None and out.suffix == ".csv" and name == "all":
        raise InputError("Expected one table for a .csv file, but got all of them: they have different columns.")


def _rendered(tables: Sequence[Table], suffix: str) -> str:
    texts = [getattr(table, FORMS[suffix])() for table in tables]
    if suffix == ".json":
        return json_format.dumps(texts if len(texts) > 1 else texts[0], indent=2, ensure_ascii=False, allow_nan=False)
    return "\n\n".join(texts)
