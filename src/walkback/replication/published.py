"""The published figures, of `published.csv` beside this file: only to be set beside ours, never to be used as ours.

Five documents describe the system and disagree in places: 000 (an outline), 001 (a first paper), 002 (a second
draft), 003 (the README of the reference implementation) and 004 (the latest paper). Every variant is kept, with its
source. ‖g‖ stands in two conventions, that of a mean loss over 128 samples and over about 1024 (`batch`): the second
is eight times smaller, and `Figure.number` converts it. Which one a document uses in which place is our reading: a
state of the network that is given in both tells them apart.

A row of the file is a `Figure`: an empty cell is the field's default, `0.07…0.1` is from low to high, and `remark` is
for who reads the file. Orders of magnitude told in words are `change`s. Its words: "passes" is "trustworthy" in the
documents; "one control for all rules" is that of 0.349, whose stem BP did not train (000 calls it DFA's own); "control
of 100 epochs" because every margin of 30 epochs is the accuracy less 0.349.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

from pydantic import ConfigDict, TypeAdapter

SOURCES = {
    "000": "outline",
    "001": "first paper",
    "002": "second draft",
    "003": "README of the reference implementation",
    "004": "latest paper",
}
PUBLISHED_BATCH, LARGE_BATCH = 128, 1024

# How a quantity is written and compared: see walkback.replication.agree.
KINDS = {
    "acc": "acc",
    "gamma": "cos",
    "cosine": "cos",
    "deep_cosine": "cos",
    "perturbation": "cos",
    "stability": "cos",
    "fresh": "cos",
    "h_norm": "norm",
    "g_norm": "norm",
    "growth": "norm",
    "growth_total": "norm",
    "change": "norm",
    "branch_growth": "norm",
    "ratio": "norm",
    "count": "count",
    "nudging": "norm",
    "weight_growth": "norm",
    "norm_product": "norm",
    "product_growth": "norm",
    "gap": "norm",
    "sigma": "norm",
    "margin": "pp",
    "train_loss_delta": "loss",
    "fired": "epoch",
    "saved": "share",
    "share": "share",
    "verdict": "word",
    "flag": "word",
}


@dataclass(frozen=True)
class Figure:
    """One published number or word: many fields, since they are the columns of published.csv.

    Args:
        where: the setting, such as "primary".
        rule: the learning rule, "frozen" ("frozen-bp" where the stem's rule is known), or "" where it belongs to none.
        what: the quantity, a key of KINDS, with a part after a dot where there are several ("verdict.four").
        value: a number, a word, or (low, high).
        source: the documents that give it, such as "000 001".
        std: the ± that is given.
        batch: of the mean loss whose ‖g‖ it is.
        rough: given as an order of magnitude, or with "about" where the same is given exactly elsewhere.
        bound: ">" where only a lower bound is given, "<" an upper one.
        penalty: λ.
        epoch: where it is not the last one.
        site: of the residual stream, from the end if negative.
        seed: where it is of one seed; 0 where that one is not named.
        unlike: in what it differs from the column it stands in, or "derived" from others of its document; such a
            figure is shown and not compared.
    """

    where: str
    rule: str
    what: str
    value: float | str | tuple[float, float]
    source: str
    std: float | None = None
    batch: int = PUBLISHED_BATCH
    rough: bool = False
    bound: str = ""
    penalty: float = 0.0
    epoch: int | None = None
    site: int | None = None
    seed: int | None = None
    unlike: str = ""

    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def kind(self) -> str:
        """How it is written and compared."""
        return KINDS[self.what.partition(".")[0]]

    @property
    def number(self) -> float:
        """The value, ‖g‖ in the convention of 128 samples."""
        assert isinstance(self.value, (int, float))
        return self.value * self.batch / PUBLISHED_BATCH


def figures(where: str, rule: str | None = None, **fields: object) -> tuple[Figure, ...]:
    """Return all that is published of a setting; `fields` choose further, such as what="acc" or penalty=1e-2.

    >>> [(f.value, f.std, f.source) for f in figures("primary", "dfa", what="acc", rough=False)]
    [(0.306, 0.006, '002'), (0.308, 0.014, '000 001'), (0.306, None, '004'), (0.308, None, '003')]
    """
    fields = {"where": where, **fields} if rule is None else {"where": where, "rule": rule, **fields}
    return tuple(f for f in FIGURES if all(getattr(f, name) == value for name, value in fields.items()))


def _value(text: str) -> float | str | tuple[float, float]:
    """Return a number, a word, or (low, high)."""
    low, dots, high = text.partition("…")
    try:
        return (float(low), float(high)) if dots else float(text)
    except ValueError:
        return text


def _read() -> tuple[Figure, ...]:
    figure, found = TypeAdapter(Figure), []
    text = files("walkback.replication").joinpath("published.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        cells = {name: cell for name, cell in row.items() if name != "remark" and (cell or name == "rule")}
        found.append(figure.validate_python(cells | {"value": _value(row["value"])}))
    return tuple(found)


FIGURES = _read()
