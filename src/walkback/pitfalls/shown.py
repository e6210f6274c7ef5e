"""What a reproducer hands back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shown:
    """What both numbers claim to be, the wrong one, the right one, and why they differ."""

    quantity: str
    wrong: float
    right: float
    explanation: str
