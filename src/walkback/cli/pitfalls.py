"""`walkback pitfalls`."""

from __future__ import annotations

from typing import Literal

from walkback.cli.options import Flag, Whole
from walkback.cli.output import print_json, print_text
from walkback.errors import InputError


def pitfalls(
    action: Literal["run", "show"] | None = None, name: str | None = None, *, seed: Whole = 0, json: Flag = False
) -> int:
    """List the ways to a wrong number, `show` the page of one, or `run` one or all to see both numbers.

    Args:
        action: show: print the page of a pitfall; run: compute them here and now; without it they are listed.
        name: With show: a pitfall by name, number or code. With run: the same, or all.
        seed: Of everything that is drawn.
        json: Print as JSON.
    """
    from walkback.pitfalls import CATALOGUE, find, run, table, text_of
    from walkback.progress import track

    if action is None:
        rows = [{"number": e.number, "name": e.name, "title": e.title, "found_by": e.detector} for e in CATALOGUE]
        width = max(len(e.name) for e in CATALOGUE)
        lines = [f"{e.code}  {e.name:{width}}  {e.title}" for e in CATALOGUE]
        text = "\n".join(
            [*lines, "", "walkback pitfalls show NAME prints its page, walkback pitfalls run NAME|all the numbers"]
        )
        print_json({"pitfalls": rows}) if json else print_text(text)
        return 0
    if name is None:
        also = ", or all" if action == "run" else ""
        raise InputError(f"Expected a pitfall to {action}, by name, number or code{also}, but got none.")
    if action == "show":
        entry = find(name)
        text = text_of(entry)
        print_json({"code": entry.code, "name": entry.name, "page": text}) if json else print_text(text)
        return 0
    wanted = CATALOGUE if name == "all" else [find(name)]
    shown = [run(entry.name, seed) for entry in track(wanted, "running the pitfalls", len(wanted))]
    if json:
        print_json({"seed": seed, "pitfalls": [one.to_dict() for one in shown]})
    else:
        why = "" if name == "all" else f"\n\n{shown[0].title}: {shown[0].explanation}\n{find(name).more}"
        print_text(table(shown) + why)
    return 0
