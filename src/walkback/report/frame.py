"""The numbers per site as one table: rows for trackers, a DataFrame for pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkback.errors import InputError

if TYPE_CHECKING:
    from walkback.report.report import Report


def site_table(report: Report) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and one row per site: its number, what was measured there, and how its cosine reads.

    >>> import walkback as wb
    >>> site_table(wb.judge({"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 2e-3]}}))
    (['site', 'h_norm', 'g_norm'], [[0, 1.0, 0.001], [1, 2.0, 0.002]])
    """
    measured = {name: values for name, values in report.per_layer.items() if values}
    sites = max(map(len, measured.values()), default=0)
    rows = [[site, *(values[site] for values in measured.values())] for site in range(sites)]
    if "null_low" in measured:
        return ["site", *measured, "reads_as"], [[*row, report.reads_as(row[0])] for row in rows]
    return ["site", *measured], rows


def frame(report: Report) -> Any:
    """Return `site_table` as a DataFrame indexed by site, with method, edition and verdict in its `attrs`."""
    try:
        import pandas as pd  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise InputError("Expected pandas to be installed, but it is not: pip install 'walkback[pandas]'.") from None
    columns, rows = site_table(report)
    made = pd.DataFrame(rows, columns=columns).set_index("site")
    numbers = [column for column in made.columns if column != "reads_as"]
    made[numbers] = made[numbers].astype(float)  # what is None in some rows is NaN, not an object
    made.attrs = {"method": report.method, "edition": report.edition, "verdict": report.verdict}
    return made
