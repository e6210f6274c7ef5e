"""The picture of an anatomy in rows: role, path, type, and what it has to do with the sites."""

from __future__ import annotations

from itertools import groupby

_FOLD = 8  # longer rows of blocks of one type are printed as first … last

Row = tuple[str, str, str, str]


def folded(rows: list[Row]) -> list[Row]:
    """Return long rows of blocks of one type in one container as the first, how many more, and the last."""
    out: list[Row] = []
    for _, run in groupby(rows, key=lambda row: (row[0].partition(" ")[0], row[1].rpartition(".")[0], row[2])):
        alike = list(run)
        if alike[0][0].startswith("block ") and len(alike) > _FOLD:
            (_, first, kind, start), (_, last, _, end) = alike[1], alike[-2]
            more = f"{len(alike) - 2} more: {first} … {last.rpartition('.')[2]}"
            alike = [alike[0], ("…", more, kind, f"{start} … {end.removeprefix('writes ')}"), alike[-1]]
        out += alike
    return out


def aligned(rows: list[Row]) -> list[str]:
    """Return rows as lines whose cells stand below each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0))).rstrip() for row in rows]
