"""What was measured of one network: the quantities of the table, and what is to be known beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import torch

from walkback.measures.formulas import Numbers
from walkback.measures.quantities import SCALAR_FIELDS, SITE_FIELDS
from walkback.notes import Note

_Numbers: Any = make_dataclass(
    "_Numbers",
    [
        *((name, Numbers, field(default_factory=list)) for name in SITE_FIELDS),
        *((name, float | None, None) for name in SCALAR_FIELDS),
    ],
    frozen=True,
)


@dataclass(frozen=True)
class Measurements(_Numbers):
    """The numbers of one network on one probe set. Lists run over sites 0…L; None was not measured.

    Its lists and scalars are those of `quantities.py`. `reasons` says why a field is None; `conditions` says under what
    it was measured.

    >>> import walkback as wb
    >>> m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2))
    >>> len(m.h_norm), m.gamma, m.reasons["gamma"]
    (5, None, 'no credit was given')
    """

    aggregates: dict[str, float | None] = field(default_factory=dict)  # Γ in other orders of averaging
    probes: dict[str, Numbers] = field(default_factory=dict)
    nonfinite: tuple[Note, ...] = ()  # where states or gradients are not finite, first batch first
    altered: Note | None = None  # how the reference was found not to be the derivative of the loss
    doubted: Note | None = None  # why it could not be checked, where something could have altered it
    dtype: torch.dtype = torch.float32
    conditions: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def nonfinite_kinds(self) -> frozenset[str]:
        """What is not finite: "state", "gradient", both or nothing."""
        return frozenset(note.values["kind"] for note in self.nonfinite)


@dataclass
class Found:
    """What the takers of traces find: fields of Measurements, why some are missing, and what is to be said."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def measurements(self) -> Measurements:
        """Return everything found, frozen."""
        return Measurements(**self.values, conditions=self.conditions, reasons=self.reasons, notes=tuple(self.notes))


def stream_shapes(conditions: Mapping[str, Any], sites: int) -> list[tuple[Any, ...]] | None:
    """Return the shape of the stream at every site, where it was logged: norms of different shapes are not compared."""
    shapes = conditions.get("state_shapes")
    if not isinstance(shapes, list) or len(shapes) != sites:
        return None
    return [tuple(shape) if isinstance(shape, list) else (shape,) for shape in shapes]
