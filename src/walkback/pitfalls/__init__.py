"""Fifteen ways to a wrong number, each with a reproducer that shows it beside the right one.

One file per pitfall; torch loads when the first of them runs. `walkback pitfalls run all` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from walkback import errors  # `shown` by its full name: a module of this folder is called so
from walkback.errors import InputError

if TYPE_CHECKING:
    from walkback.pitfalls.shown import Shown


@dataclass(frozen=True)
class Entry:
    """A pitfall of the catalogue.

    Args:
        number: as in CHECKLIST.md.
        name: what `run` and the command line call it.
        title: the mistake in one line.
        detector: what finds it: "lint" (in a script, before it runs), "report" (in the measurement) or both.
    """

    number: int
    name: str
    title: str
    detector: str

    @property
    def code(self) -> str:
        """What `walkback lint` prints, and what `# walkback: ignore[P01]` names."""
        return f"P{self.number:02}"

    @property
    def page(self) -> str:
        """Its page of the documentation."""
        return f"docs/pitfalls/{self.number:02}-{self.name}.md"


CATALOGUE = (
    Entry(1, "negative-norm", "tensor.norm(-1) is the L₋₁ norm of everything, not a row norm", "lint"),
    Entry(2, "cosine-epsilon", "F.cosine_similarity holds tiny gradients up with an ε", "lint, report"),
    Entry(3, "half-precision", "fp16 turns small gradients into zeros; bf16 does not", "lint, report"),
    Entry(4, "fresh-feedback", "feedback drawn anew at evaluation has no alignment", "lint"),
    Entry(5, "averaging-order", "Γ depends on what is averaged first", "report"),
    Entry(6, "one-layer", "an average over layers hides that one of them carries it", "lint, report"),
    Entry(7, "lost-auxiliaries", "without the saved feedback, code compares BP with itself", "lint, report"),
    Entry(8, "two-passes", "credit and reference come from different passes", "lint, report"),
    Entry(9, "unmatched-control", "depth is compared with a control that trained for less", "lint, report"),
    Entry(10, "training-mode", "measured in training mode", "lint, report"),
    Entry(11, "renormalised", "the stream is renormalised before it is logged", "lint, report"),
    Entry(12, "missing-null", "an intervention is judged without its null", "none"),
    Entry(13, "batch-size", "the gradient norm of a mean loss depends on the batch size", "lint"),
    Entry(14, "sorted-batches", "batches sorted by class fake a drifting reference", "lint, report"),
    Entry(15, "off-by-one", "a credit paired with the gradient of the next layer looks aligned", "lint, report"),
)


@dataclass(frozen=True)
class Pitfall:
    """A pitfall as its reproducer showed it here and now.

    Args:
        number: as in CHECKLIST.md.
        name: of the catalogue.
        title: the mistake in one line.
        quantity: what both numbers claim to be.
        wrong: what the mistake gives.
        right: what it should have been.
        factor: wrong / right, None where the right number is zero.
        explanation: why they differ, with what else was measured.
    """

    number: int
    name: str
    title: str
    quantity: str
    wrong: float
    right: float
    factor: float | None
    explanation: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def find(name: str) -> Entry:
    """A pitfall by name, number or code.

    >>> find("P02").name, find("2").name, find("cosine-epsilon").number
    ('cosine-epsilon', 'cosine-epsilon', 2)
    """
    for entry in CATALOGUE:
        if str(name).lower() in (entry.name, str(entry.number), f"{entry.number:02}", entry.code.lower()):
            return entry
    known = ", ".join(entry.name for entry in CATALOGUE)
    raise InputError(f"Expected a pitfall by name, number or code, but got {errors.shown(name)}. There are: {known}.")


def run(name: str, seed: int = 0) -> Pitfall:
    """Run one reproducer; nothing of this process is changed.

    >>> shown = run("negative-norm")
    >>> shown.wrong < 1e-3 < 15 < shown.right
    True
    """
    import torch

    entry = find(name)
    module = import_module(f"walkback.pitfalls.p{entry.number:02}_{entry.name.replace('-', '_')}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # everything is tiny: on a busy machine threads only wait for each other
    try:
        with torch.random.fork_rng(devices=[]):
            shown: Shown = module.show(seed)
    finally:
        torch.set_num_threads(threads)
    factor = shown.wrong / shown.right if shown.right else None
    told = shown.quantity, shown.wrong, shown.right, factor, shown.explanation
    return Pitfall(entry.number, entry.name, entry.title, *told)


def run_all(seed: int = 0) -> Iterator[Pitfall]:
    """Run every reproducer, one after the other."""
    for entry in CATALOGUE:
        yield run(entry.name, seed)


def table(shown: list[Pitfall]) -> str:
    """What reproducers showed, as one text table.

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
    """The factor for people: ×100, ÷100, a changed sign, or what became of nothing.

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
