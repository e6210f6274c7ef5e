"""What a report says beside its numbers, as data: a Note is a code, a site and values. Sentences are made last.

No code reads a sentence. Whatever decides something (a verdict, a column, another note) looks at codes and values;
`Note.text` is for the person who reads the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Note:
    """One thing to be said: its code (kebab-case, see SENTENCES), the site it is about, and the values in it.

    >>> Note("zero-credit-site", 2, {"samples": 3, "of": 8}).text
    'the credit of 3 of 8 samples is zero at site 2: they are counted as no alignment and no change'
    """

    code: str
    site: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The note as a sentence, without its full stop."""
        sentence = SENTENCES[self.code]
        return sentence(self) if callable(sentence) else sentence.format(site=self.site, **self.values)


SENTENCES: dict[str, str | Callable[[Note], str]] = {
    "zero-credit-site": (
        "the credit of {samples} of {of} samples is zero at site {site}: they are counted as no alignment and no change"
    ),
    "unproven-credit": lambda note: _unproven(**note.values),
    "inner-feedback": (
        "feedback is sent into {module} below what it returns: {fed} of its {of} parameters that were looked at get "
        "their gradient from there, and the credit of site {site} trains the others"
    ),
    "added-gradient": lambda note: (
        f"{note.values['share']:.0%} of a gradient in the weights of {note.values['module']} does not come from the "
        f"credit of site {note.site}: a loss or penalty inside it"
    ),
    "other-writer": (
        "{module}, named as the writer of site {site}, writes neither the state nor what is added to it: its signal is "
        "compared with the gradient of another value"
    ),
}

# Why a recorded credit could not be proven.
UNPROVEN = {
    "no-parameters": "the module that writes it has no parameters",
    "frozen": "no parameter of the module that writes it is trained",
    "shared": "the parameters of the module that writes it are used outside it too",
    "no-gradient": "the run left no gradients in its weights (an optimiser in the backward pass that clears them?)",
    "failed": "the run could not be repeated",
    "sharded": "its parameters are sharded",
    "ranks": "gradients are averaged over processes",
    "nonfinite": "it is not finite",
    "one-sample": "the batch has one sample",
    "random": "the backward pass draws random numbers",
    "other-states": "training mode computes other states",
    "placed": "in another order the batch has other states",
}


def _unproven(proof: str, why: str, detail: str, sites: list[int]) -> str:
    which = f"site{'s' * (len(sites) > 1)} {', '.join(map(str, sites))}"
    what = {
        "weights": f"recorded credit of {which} is what trains the weights there",
        "samples": "recorded credits belong to the samples of the batch",
        "mode": "recorded credits, of eval mode, are those of training mode",
    }[proof]
    return f"it could not be proven that the {what}: {UNPROVEN[why]}{f' ({detail})' if detail else ''}"
