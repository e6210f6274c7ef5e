"""The ways to a wrong number, each with a reproducer that shows it beside the right one.

One file per pitfall: its entry (`PITFALL`), its detector for `walkback lint` where there is one (`detect`), and its
reproducer (`show`). The files import torch only inside of reproducers, so that linting works without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from walkback.errors import InputError, shown
from walkback.pitfalls.pitfall import Entry, Pitfall, Shown
from walkback.registry import modules_of

_FILES = {module.PITFALL: module for module in modules_of(__name__, r"p\d\d_")}
CATALOGUE: tuple[Entry, ...] = tuple(sorted(_FILES, key=lambda entry: entry.number))
DETECTORS = {entry.code: _FILES[entry].detect for entry in CATALOGUE if hasattr(_FILES[entry], "detect")}

__all__ = ["CATALOGUE", "DETECTORS", "Entry", "Pitfall", "find", "run", "run_all", "table", "text_of", "times"]


def find(name: str) -> Entry:
    """Return a pitfall by name, number or code.

    >>> find("P02").name, find("2").name, find("cosine-epsilon").number
    ('cosine-epsilon', 'cosine-epsilon', 2)
    """
    for entry in CATALOGUE:
        if str(name).lower() in (entry.name, str(entry.number), f"{entry.number:02}", entry.code.lower()):
            return entry
    known = ", ".join(entry.name for entry in CATALOGUE)
    raise InputError(f"Expected a pitfall by name, number or code, but got {shown(name)}. There are: {known}.")


def text_of(entry: Entry) -> str:
    """Return the page of a pitfall: from the package, or in a checkout from its docs.

    >>> text_of(find("P02")).splitlines()[0]
    '# P02: the ε of `F.cosine_similarity`'
    """
    name = Path(entry.page).name
    shipped = files(__name__) / "pages" / name
    checkout = Path(__file__).resolve().parents[3] / entry.page
    for place in (shipped, checkout):
        if place.is_file():
            return place.read_text(encoding="utf-8").rstrip()
    raise InputError(f"Expected the page of {entry.code} in the package, but {name} is missing: install it anew.")


def run(name: str, seed: int = 0) -> Pitfall:
    """Run one reproducer; nothing of this process is changed.

    >>> shown = run("negative-norm")
    >>> shown.wrong < 1e-3 < 15 < shown.right
    True
    """
    entry = find(name)
    import torch

    from walkback.training.setup import threads

    # Everything is tiny: on a busy machine threads only wait for each other.
    with threads(1), torch.random.fork_rng(devices=[]):
        one: Shown = _FILES[entry].show(seed)
    factor = one.wrong / one.right if one.right else None
    numbers = one.quantity, one.wrong, one.right, factor, one.explanation
    return Pitfall(entry.number, entry.name, entry.title, *numbers)


def run_all(seed: int = 0) -> Iterator[Pitfall]:
    """Run every reproducer, one after the other."""
    for entry in CATALOGUE:
        yield run(entry.name, seed)


def table(shown: list[Pitfall]) -> str:
    """Return what reproducers showed, as one text table.

    >>> print(table([Pitfall(1, "a", "b", "norm", 2.0, 8.0, 0.25, "why")]))
      #  pitfall    quantity      wrong    right  wrong/right
    ---  ---------  ----------  -------  -------  -------------
      1  a          norm              2        8  ÷4
    """
    from tabulate import tabulate

    rows = [(p.number, p.name, p.quantity, f"{p.wrong:.3g}", f"{p.right:.3g}", times(p)) for p in shown]
    head = ("#", "pitfall", "quantity", "wrong", "right", "wrong/right")
    align = ("right", "left", "left", "right", "right", "left")
    return tabulate(rows, head, disable_numparse=True, colalign=align)


def times(p: Pitfall) -> str:
    """Return the factor for people: ×100, ÷100, a changed sign, or what became of nothing.

    >>> times(Pitfall(1, "a", "b", "norm", -0.5, 0.25, -2.0, "why"))
    '×2, and the sign changes'
    """
    if p.factor is None:
        return "from zero"
    if p.factor == 0:
        return "lost"
    size = abs(p.factor)
    text = f"×{size:.3g}" if size >= 1 else f"÷{1 / size:.3g}"
    return text if p.factor > 0 else f"{text}, and the sign changes"
