"""Columns of a log by the names they go by: Walkback's own metrics, first and last norms, and what can't be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from walkback.errors import InputError, shown
from walkback.measures.quantities import LOGGED_SCALARS, PER_SITE
from walkback.notes import Note
from walkback.registry import is_number
from walkback.report.formats.logged_row import ACCURACIES, CONDITIONS, Row

Named = tuple[Mapping[str, Any], str]

PREFIX = "walkback/"
_LISTS = [q.name for q in PER_SITE]
_SITE = re.compile(r"(\w+?)[_./\[]?(\d{1,9})\]?")
# Columns may skip sites, but not so many that a name of a few letters fills the memory.
SPARSE = 128
MOST_TOLD = 100  # of the columns that were not used; a log may have a million
# Facts about a row that are no numbers of it, and what Walkback's own metrics say beside them.
_FACTS = {"epoch", "step", "total_epochs", "total_steps", "schema", "method", "notes", "advisories", "nonfinite",
          "altered", "doubted", "edition", "thresholds", "verdict", "failed", "at", "seed", "run_id"}  # fmt: skip
_ENDS = {"h_norm_first", "h_norm_last", "g_norm_last"}
KNOWN = {*_LISTS, *LOGGED_SCALARS, *CONDITIONS, *Row.model_fields, *_FACTS, *_ENDS}
KNOWN |= {name for names in ACCURACIES.values() for name in names}


def read_columns(rows: Sequence[Named]) -> tuple[list[Named], tuple[Note, ...]]:
    """Return rows with their columns under Walkback's names, and a note on the columns that were not used.

    >>> rows, notes = read_columns([({"walkback/h_norm/0": 1.0, "walkback/h_norm/1": 2.0, "hnorm2": 9.0}, "row 0")])
    >>> rows[0][0]["per_layer"]["h_norm"], notes[0].values["columns"]
    ([1.0, 2.0], ['hnorm2'])
    """
    renamed: list[Named] = []
    unused: dict[str, None] = {}
    for row, where in rows:
        if row.get("schema") is not None:
            renamed.append((row, where))
            continue
        made, left = _read(row)
        renamed.append((made, where))
        unused |= dict.fromkeys(left)
    if not unused:
        return renamed, ()
    told, more = [*unused][:MOST_TOLD], max(0, len(unused) - MOST_TOLD)
    meant = {column: guess for column in told if (guess := _meant(column)) and guess != column}
    values = {"columns": told, "meant": meant, **({"more": more} if more else {})}
    return renamed, (Note("unused-columns", None, values),)


# How papers head their columns, in small letters.
_PRINTED = {"γ": "gamma", "ρ": "growth", "‖h_l‖": "h_norm_last", "‖g_l‖": "g_norm_last", "test_accuracy": "accuracy"}
# Names under which a table of methods has the accuracies that its other rows are compared with.
BESIDE = {
    "frozen_baseline_acc": ("frozen", "frozen blocks", "frozen random blocks", "random blocks", "frozen baseline",
                            "frozen control", "frozen blocks baseline", "random blocks baseline"),
    "bp_acc": ("bp", "backprop", "backpropagation"),
}  # fmt: skip


def spelled(column: str) -> str:
    """Return the name of a column that a paper heads in its own way; any other as it is.

    >>> spelled("Accuracy"), spelled("‖g_L‖"), spelled("Γ"), spelled("Comment")
    ('accuracy', 'g_norm_last', 'gamma', 'Comment')
    """
    plain = column.lower().strip(" .").replace("||", "‖").replace(" ", "_")
    name = _PRINTED.get(plain, plain)
    return name if name in KNOWN or site_of(name) is not None else column


def stands_for(method: str) -> str | None:
    """Return the accuracy that a row of this name gives all others: "frozen_baseline_acc", "bp_acc", or None.

    >>> stands_for("Frozen-blocks baseline"), stands_for("DFA")
    ('frozen_baseline_acc', None)
    """
    plain = method.lower().replace("-", " ").replace("_", " ").strip()
    return next((name for name, called in BESIDE.items() if plain in called), None)


def methods(rows: Sequence[Named]) -> list[str]:
    """Return the methods that rows name, in their order."""
    return list(dict.fromkeys(str(row["method"]) for row, _ in rows if row.get("method") not in (None, "")))


def site_of(column: str) -> tuple[str, int] | None:
    """Return the quantity and the site of a column; None of one that is not of a site.

    >>> site_of("h_norm_3"), site_of("epoch")
    (('h_norm', 3), None)
    """
    match = _SITE.fullmatch(column)
    return (match[1], int(match[2])) if match is not None and match[1] in _LISTS else None


def over_sites(sites: Mapping[str, Mapping[int, Any]], least: int = 0) -> dict[str, list[Any]]:
    """Return one list per quantity from its values by site, of at least `least` sites; None where a site has none."""
    for name, at in sites.items():
        if max(at) >= SPARSE * len(at):
            end = f"{name}_last"
            hint = f" Where only the last site was logged, call it {end}." if end in _ENDS else ""
            raise InputError(
                f"Expected a column for every site, or for one in {SPARSE} of them, but {name} has a column for site "
                f"{max(at)} and {len(at)} in all.{hint}"
            )
    return {name: [at.get(i) for i in range(max(least, max(at) + 1))] for name, at in sites.items()}


def of_method(rows: Sequence[Named], method: str) -> list[Named]:
    """Return the rows of one method, where a log has one row, or several, for each of many.

    Where they have no accuracy of a frozen control, or of BP, those of the rows "frozen" and "BP" are put into them.

    >>> rows = [({"method": "DFA", "acc": 0.31}, "row 0"), ({"method": "frozen", "acc": 0.35}, "row 1")]
    >>> of_method(rows, "DFA")[0][0]["frozen_baseline_acc"]
    0.35
    """
    names = methods(rows)
    if len(names) < 2:
        return list(rows)
    if method not in names:
        what = f"there is no {shown(method)}" if method else "no method was named"
        raise InputError(
            f"Expected one method to judge, since the rows are those of {', '.join(names)}, but {what}. Pass one of "
            "them: method_name=…, or --method."
        )
    _refuse_seeds(rows)
    row_of = {stands_for(str(row.get("method"))): row for row, _ in rows}
    given = {name: _first(row_of.get(name, {}), ACCURACIES["headline_acc"]) for name in BESIDE}
    more = {name: value for name, value in given.items() if value is not None}
    kept = [(row, where) for row, where in rows if str(row.get("method")) == method]
    lacks = {name: value for name, value in more.items() if all(_first(r, ACCURACIES[name]) is None for r, _ in kept)}
    return [({**row, **lacks}, where) for row, where in kept]


def _refuse_seeds(rows: Sequence[Named]) -> None:
    """Refuse rows of several seeds of one method, of which only the last would be judged."""
    seeds: dict[str, list[Any]] = {}
    for row, _ in rows:
        known = seeds.setdefault(str(row.get("method")), [])
        if row.get("seed") not in (None, *known):
            known.append(row["seed"])
    method, several = max(seeds.items(), key=lambda found: len(found[1]))
    if len(several) > 1:
        raise InputError(
            f"Expected one row per method, or one per epoch of it, but {shown(method)} has rows of {len(several)} "
            "seeds. Give one row with their mean, or judge one method with all accuracies: --headline-acc … "
            "--frozen-acc …"
        )


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _read(row: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    made: dict[str, Any] = {}
    sites: dict[str, dict[int, Any]] = {}
    unused: list[str] = []
    for column, value in row.items():
        name = str(column).removeprefix(PREFIX)
        if name in KNOWN:
            refuse_twice(str(column), made.get(name), value)
            made.setdefault(name, value)
        elif (site := site_of(name)) is not None:
            at = sites.setdefault(site[0], {})
            refuse_twice(str(column), at.get(site[1]), value)
            at[site[1]] = value
        elif name.startswith("flagged/") and str(column) != name:
            continue  # what a Watch found of these numbers, which are judged again
        else:
            made[column] = value
            unused.append(str(column))
    if sites:
        # Walkback logs no metric for what is None, as a cosine with the next site is at the last one.
        whole = max(max(at) for at in sites.values()) + 1 if any(str(c).startswith(PREFIX) for c in row) else 0
        lists = over_sites(sites, whole)
        given = made.get("per_layer")
        made["per_layer"] = {**lists, **given} if isinstance(given, Mapping) else lists
    first, last = made.pop("h_norm_first", None), made.pop("h_norm_last", None)
    if first and last is not None:
        for name, value in (("h_norm_first", first), ("h_norm_last", last)):
            if not (isinstance(value, float) or is_number(value)):
                raise InputError(f"Expected {name} to be a number, but got {shown(value)}.")
        made.setdefault("growth_total", float(last) / float(first))
    elif first is not None or last is not None:
        unused.append("h_norm_first" if last is None else "h_norm_last")
    if (deepest := made.pop("g_norm_last", None)) is not None:
        made.setdefault("g_norm_deepest", deepest)
    return made, unused


def refuse_twice(column: str, other: Any, value: Any) -> None:
    """Refuse a column whose quantity, or site of one, another column has with another value."""
    numbers = [x for x in (other, value) if isinstance(x, float) or is_number(x)]
    if len(numbers) == 2 and numbers[0] != numbers[1]:
        raise InputError(
            f"Expected one column for what {shown(column)} is, but another one, spelled otherwise, has "
            f"{shown(other)} where it has {shown(value)}. Leave one of them out."
        )


def _meant(column: str) -> str:
    """Return the column that a name may have been meant for; "" where none is near."""
    digits = re.search(r"(\d+)\D*$", column)
    stem = _plain(column[: digits.start()] if digits else column)
    near = get_close_matches(stem, {_plain(name): name for name in _names()}, n=1, cutoff=0.75)
    if not near:
        return ""
    name = {_plain(known): known for known in _names()}[near[0]]
    return f"{name}_{digits[1]}" if digits and name in _LISTS else name


def _names() -> Iterable[str]:
    return sorted(KNOWN - {"at", "run_id", "schema"})


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower().removeprefix(PREFIX))
