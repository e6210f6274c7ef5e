"""What a report says beside its numbers, as data: a Note is a code, a site and values. Sentences are made last.

No code reads a sentence. Whatever decides something (a verdict, a column, another note) looks at codes and values;
`Note.text` is for the person who reads the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from walkback.sentences import SENTENCES

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Note:
    """One thing to be said: its code (kebab-case, a key of SENTENCES), the site it is about, and the values in it.

    >>> Note("concentrated", 2, {"share": 0.75}).text
    'one site carries 75% of Γ: report the cosine per layer'
    """

    code: str
    site: int | None = None
    values: Values = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The note as a sentence, without its full stop."""
        sentence = SENTENCES[self.code]
        return sentence(self) if callable(sentence) else sentence.format(site=self.site, **self.values)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return {code, site, values, text}: as reports store it. Reading takes the first three only."""
        return {"code": self.code, "site": self.site, "values": dict(self.values), "text": self.text}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Note:
        """Make a note of what `to_dict` returned. Another version's is shown with the text that was stored with it."""
        code, site, values = str(data["code"]), data.get("site"), data.get("values") or {}
        note = Note(code, site, values)
        try:
            note.text  # noqa: B018
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):  # not of this version
            return Note("said", site, {"code": code, "text": str(data.get("text", code))})
        return note


def coded(notes: Iterable[Note], *codes: str) -> list[Note]:
    """Return the notes with one of these codes, in their order.

    >>> [note.site for note in coded([Note("zero-credit"), Note("concentrated", 1)], "concentrated")]
    [1]
    """
    return [note for note in notes if note.code in codes]


# What judging says anew from the numbers, so it is not carried over from a report.
RENEWED = frozenset(
    ("said-anew", "other-accuracy", "constant-norm", "bp-direction", "bp-against", "bp-nearly", "other-thresholds",
     "no-spread", "below-chance", "reference-under-floor", "concentrated", "editions-differ", "clamp-decides",
     "depth-differs", "shifted-pairing", "controls", "training-mode", "large-batch",
     "null-without-zero", "no-such-share",
     "remark", "nonfinite", "altered-backward", "unchecked-backward")
)  # fmt: skip
