"""What a pitfall is: its entry in the catalogue, what its reproducer hands back, and what its detector yields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

# Of a detector: the place in a script, why it is wrong there, and what to write instead.
Found = Iterator[tuple[ast.expr | ast.stmt, str, str]]


@dataclass(frozen=True)
class Entry:
    """A pitfall of the catalogue, numbered as in CHECKLIST.md.

    `detector` is what finds it: "lint" (in a script, before it runs), "report" (in the measurement) or both.
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
        """The path of its page in the repository."""
        return f"docs/pitfalls/{self.number:02}-{self.name}.md"

    @property
    def more(self) -> str:
        """The command that prints its page, which ships with the package."""
        return f"walkback pitfalls show {self.code}"


@dataclass(frozen=True)
class Shown:
    """What both numbers claim to be, the wrong one, the right one, and why they differ."""

    quantity: str
    wrong: float
    right: float
    explanation: str


@dataclass(frozen=True)
class Pitfall:
    """A pitfall as its reproducer showed it here and now; `factor` is wrong / right, None where right is zero."""

    number: int
    name: str
    title: str
    quantity: str
    wrong: float
    right: float
    factor: float | None
    explanation: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
