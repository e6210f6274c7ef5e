"""`walkback report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from walkback.cli.options import Flag
from walkback.cli.output import print_json, print_text, warn, write
from walkback.errors import InputError, shown


def report(
    folder: Path,
    *,
    out: Path | None = None,
    tables: Path | None = None,
    figures: Path | None = None,
    template: Path | None = None,
    open: Flag = False,
    json: Flag = False,
) -> int:
    """Make one page about all runs of a store: verdicts first, then every run with its figures.

    Args:
        folder: Where the runs are, however deep.
        out: The page, .html: one file that needs no network. report.html if nothing else is asked for.
        tables: Also write the tables into this folder.
        figures: Also write the figures into this folder.
        template: Also fill the reporting template and write it there.
        open: Show the page in the browser.
        json: Print what was written and the verdicts as JSON.
    """
    if out is None and (open or (tables, figures, template) == (None, None, None)):
        out = Path("report.html")
    if out is not None and out.suffix not in (".html", ".htm"):
        raise InputError(f"Expected --out to end in .html, the page is one file, but got {shown(str(out))}.")
    if out is not None and out.is_dir():
        raise InputError(f"Expected --out to be a file, but {out} is a folder. Write --out {out / 'report.html'}.")
    if out is not None and not out.parent.is_dir():
        advice = f"{out.parent} is not. Make it: mkdir -p {out.parent}."
        raise InputError(f"Expected the folder of --out to be there, but {advice}")
    if template is not None and template.suffix not in (".md", ".txt", ""):
        raise InputError(f"Expected --template to end in .md: it is written as Markdown, but got {template}.")
    if figures is not None:
        import walkback.replication.figures  # noqa: F401  says that matplotlib is missing before a minute of tables

    from walkback.audit.records import read_records
    from walkback.replication.page import page_data, render

    records = read_records(folder)
    data = page_data(records)
    if out is not None:
        write(out, render(data))
    if tables is not None:
        from walkback.replication.forms import save_tables

        save_tables(records, tables)
    if figures is not None:
        from walkback.replication.figures import save_figures

        save_figures(records, figures)
    if template is not None:
        from walkback.replication.template import fill_template

        fill_template(records, template)
    asked = {"page": out, "tables": tables, "figures": figures, "template": template}
    written = {what: str(path) for what, path in asked.items() if path is not None}
    for path, reason in data["problems"]:
        warn(f"not used: {path}: {reason}")
    if json:
        print_json({"written": written, **{k: data[k] for k in ("summary", "settings", "missing", "problems")}})
    else:
        print_text("\n".join([data["summary"], *(f"{what}: {path}" for what, path in written.items())]))
    if open and out is not None and not webbrowser.open(out.resolve().as_uri()):
        warn(f"No browser could be opened. The page is {out.resolve()}.")
    return 0
