"""Every evidence table for a paper: Markdown, LaTeX and CSV, the best in bold and the thresholds in the caption."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from walkback.audit.records import Records
from walkback.errors import FormatError
from walkback.files import write_whole
from walkback.replication.tables import TABLES, evidence, front_page
from walkback.report.latex import document
from walkback.report.table import Table, csv_text, number
from walkback.verdict.checks import DiagnosticThresholds

# Columns in which more (1) or less (-1) is better. A cosine is not among them: it is the claim, not the quality.
BEST = {
    "acc": 1,
    "final acc": 1,
    "D3 pp": 1,
    "D3 pp, BP stem": 1,
    "over the pixels, pp": 1,
    "nudge": -1,
    "nudge, relative": -1,
    "Δ train loss": -1,
}
GROUP = ("network", "terminal LN", "data", "figures")  # rows are compared that have these in common
BOLD = (
    "Bold: the best of the rows of one network and variant, without BP and the controls (accuracy and gain: highest; "
    "nudge and change of the training loss: lowest); a gain that flags is never bold."
)


def thresholds() -> str:
    """Return the sentence of a caption on thresholds.

    >>> thresholds()[:55]
    'Checks flag: D1 and (a) growth above 50; D2 and (b) ‖g_'
    """
    t = DiagnosticThresholds()
    return (
        f"Checks flag: D1 and (a) growth above {t.h_norm_explosion_ratio:g}; D2 and (b) ‖g_L‖ below "
        f"{number(t.g_norm_floor, 'norm')}; (c) stability above {t.stability_drift_ceiling:g}; D3 and (d) a gain under "
        f"{t.frozen_acc_margin_pp:g} pp over frozen blocks."
    )


def best(table: Table) -> frozenset[tuple[int, int]]:
    """Return (row, column) of the best cells: see BOLD. Nothing is best of one, ties are all best, unless it flags."""
    cells: dict[tuple[Any, ...], list[tuple[float, int, int]]] = {}
    for r, row in enumerate(table.data):
        if not _compared(row):
            continue
        for c, head in enumerate(table.columns):
            value = _value(row[head])
            if head in BEST and value is not None:
                group = (head, *(row.get(name) for name in GROUP))
                cells.setdefault(group, []).append((BEST[head] * value, r, c))
    top = [(r, c) for found in cells.values() if len(found) > 1 for v, r, c in found if v == max(found)[0]]
    return frozenset((r, c) for r, c in top if not _flags(table.data[r][table.columns[c]]))


def _compared(row: dict[str, Any]) -> bool:
    name = str(row.get("rule") or row.get("model") or "")
    return str(row.get("figures")).startswith("ours") and name != "BP" and not name.startswith("frozen")


def _value(raw: Any) -> float | None:
    return raw.get("mean", raw.get("value")) if isinstance(raw, dict) else None


def _flags(raw: Any) -> bool:
    return isinstance(raw, dict) and raw.get("flagged") is True


def to_csv(table: Table) -> str:
    """Return the rows as read, then mean and std of every measured column in full, and where each row is best."""
    measured = [h for h in table.columns if any(isinstance(row[h], dict) and "mean" in row[h] for row in table.data)]
    marked = best(table)
    rows: list[list[Any]] = [
        [*table.columns, *(f"{h}, {part}" for h in measured for part in ("mean", "std")), "best in"]
    ]
    for i, (row, data) in enumerate(zip(table.rows, table.data)):
        cells = [data[h] if isinstance(data[h], dict) else {} for h in measured]
        numbers = [cell.get(part) for cell in cells for part in ("mean", "std")]
        rows.append([*row, *numbers, "; ".join(table.columns[c] for r, c in sorted(marked) if r == i)])
    return csv_text(rows)


def save_tables(records: Records, folder: str | Path, names: Iterable[str] = tuple(TABLES)) -> tuple[Path, ...]:
    """Write every table as `folder/NAME.md`, `.tex` and `.csv`, with `index.md` and `all.tex`, which compiles.

    Args:
        records: see `walkback.audit.records.read_records`.
        folder: made if missing.
        names: of `walkback.replication.tables.TABLES`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = save_tables(Records(Path("runs")), folder, ["primary"])  # no runs: what to train stands below it
    >>> sorted(file.name for file in files)
    ['all.tex', 'index.md', 'primary.csv', 'primary.md', 'primary.tex']
    """
    folder, tables = Path(folder), [evidence(name, records) for name in names]
    texts: dict[str, str] = {}
    for table in tables:
        marked = best(table)
        caption = f"{thresholds()} {BOLD}" if marked else thresholds()
        texts[f"{table.name}.md"] = table.to_markdown(marked, caption)
        texts[f"{table.name}.tex"] = table.to_latex(marked, caption)
        texts[f"{table.name}.csv"] = to_csv(table).rstrip("\n")
    texts["index.md"] = front_page(tables, records)
    texts["all.tex"] = document(rf"\input{{{table.name}}}\clearpage" for table in tables)
    try:
        for name, text in texts.items():
            write_whole(folder / name, text + "\n")
    except OSError as error:
        raise FormatError(f"Expected to write tables to {folder}, but: {error}.") from None
    return tuple(folder / name for name in texts)
