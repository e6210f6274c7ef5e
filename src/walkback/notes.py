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
    "zero-credit-epochs": lambda note: (
        f"the credit was zero for every sample in {note.values['epochs']} of {note.values['of']} epochs of training at "
        f"site{'s' * (len(note.values['sites']) > 1)} {', '.join(map(str, note.values['sites']))}: what it should "
        "train there learned nothing"
    ),
}
