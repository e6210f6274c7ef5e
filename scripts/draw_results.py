"""Draws results/figures, counts results/coverage.md, lists results/runs.md and names all in docs: for `make evidence`.

python scripts/draw_results.py
"""

import re
from collections.abc import Mapping
from pathlib import Path

from tabulate import tabulate

from walkback.audit.records import Records, read_records
from walkback.audit.wording import command
from walkback.replication.decoded import decoded
from walkback.replication.decoded_networks import networks
from walkback.replication.figures import FIGURES, save_figures
from walkback.replication.found import markdown_list
from walkback.replication.summaries import names
from walkback.replication.tables import TABLES, evidence
from walkback.report.table import Table


def main() -> None:
    records, published_way = read_records("results"), read_records("evidence/runs")
    look = {"widths": ["double"], "formats": ["png"], "dpi": 150}
    saved = save_figures(records, "results/figures", **look)
    # Older records have neither cosines with neighbouring sites nor accuracies by depth; those of the papers' way may.
    rest = save_figures(published_way, "results/figures", saved.not_drawn, **look)
    hero = save_figures(published_way, "results/figures/papers-way", ["reporting-pair"], **look)  # of the README
    drawn = len(saved.files + rest.files + hero.files)
    print(f"{drawn} figures: results/figures; not drawn: {', '.join(rest.not_drawn) or 'none'}")
    Path("results/coverage.md").write_text(coverage(records), encoding="utf-8")
    every = decoded(published_way, records)
    Path("results/tables/decoded.md").write_text(f"{every.to_markdown()}\n", encoding="utf-8")
    print(f"{len(every.rows)} published figures: results/tables/decoded.md")
    finished = networks(read_records("evidence/runs"))
    Path("results/tables/decoded-networks.md").write_text(f"{finished.to_markdown()}\n", encoding="utf-8")
    Path("results/runs.md").write_text(runs(records), encoding="utf-8")
    drawn_by = {name: figure.about for name, figure in FIGURES.items()}
    for page, shows in (("docs/evidence.md", names()), ("docs/figures.md", drawn_by)):
        Path(page).write_text(listing(Path(page).read_text(encoding="utf-8"), shows), encoding="utf-8")


def listing(text: str, shows: Mapping[str, str]) -> str:
    """A page of the documentation whose list of tables or figures is that of their folder."""
    return re.sub(r"\| name \| what it shows \|\n(\|.*\n)+", lambda _: markdown_list(shows) + "\n", text, count=1)


def coverage(records: Records) -> str:
    """What each table of the papers has of ours: rows with runs, rows without, and how many agree."""
    head = ["table", "rows of ours", "without any run", "agree", "agree in part", "disagree", "nothing to compare"]
    rows = [[f"[{name}](tables/{name}.md)", *counts(evidence(name, records))] for name in TABLES]
    total = ["all", *(sum(row[column] for row in rows) for column in range(1, len(head)))]
    table = tabulate([*rows, total], head, tablefmt="pipe", disable_numparse=True)
    return f"# Rows of every table\n\nFrom {len(records)} finished runs.\n\n{table}\n"


def runs(records: Records) -> str:
    """Every record with its numbers, its machine and the command that trains it."""
    head = ["run", "acc", "‖h_L‖", "‖g_L‖", "torch, processor", "command"]
    rows = []
    for run in sorted(records, key=lambda run: str(run.path)):
        h, g = run.report.per_layer["h_norm"], run.report.per_layer["g_norm"]
        where = ", ".join(run.machine[key] for key in ("torch", "machine", "blas") if key in run.machine)
        line = command(run.spec, [run.spec.seed], Path("runs"))
        name = f"`{run.path.relative_to('results').as_posix()}`"
        rows.append([name, f"{run.accuracy:.4f}", f"{h[-1]:.3g}", f"{g[-1]:.3g}", where, f"`{line}`"])
    table = tabulate(rows, head, tablefmt="pipe", disable_numparse=True)
    return f"# The records\n\nCIFAR-10 needs `--root DIR` as well.\n\n{table}\n"


def counts(table: Table) -> list[int]:
    """Rows of ours, those without a run, then of the others: agree, agree in part, disagree, nothing published."""
    rows = [dict(zip(table.columns, row)) for row in table.rows]
    ours = [row for row in rows if row.get("figures") != "published"]
    ours = [row for row in ours if row.get("n") != "–" and row[table.columns[0]] != "n"]  # neither sums nor counts
    counted = [column for column in table.columns if column == "n" or column.startswith("n of ")]
    counted = counted or [column for column in ("draws", "(a)", "figures") if column in table.columns][:1]
    there = [row for row in ours if any(row[column] not in ("0", "–") for column in counted)]
    said = [row.get("agrees?", "–") for row in there]
    part = sum(" of " in text for text in said)
    return [len(ours), len(ours) - len(there), said.count("yes"), part, said.count("no"), said.count("–")]


if __name__ == "__main__":
    main()
