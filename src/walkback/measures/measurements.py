"""What was measured of one network: the quantities of the table, and what is to be known beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from math import prod
from typing import Any

from walkback.measures.over_sites import DEEP_OVER, GAMMA_OVER, Numbers, averaged, concentration, deep_sites, mean
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
    dtype: str = "float32"  # of the gradients
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


def by_layer(conditions: Mapping[str, Any]) -> bool:
    """Return whether sites are the layers of a plain network, whose states are read whole, and not of a stream."""
    return conditions.get("pool") == "whole"  # network.layers.WHOLE, which is not imported: no torch here


def gamma_cosines(cosine: Numbers, conditions: Mapping[str, Any]) -> Numbers:
    """Return the cosines that Γ averages, under the conditions of a measurement."""
    return averaged(cosine, by_layer(conditions), conditions.get("gamma_over") or GAMMA_OVER[0])


def deep_of(cosine: Numbers, conditions: Mapping[str, Any]) -> range:
    """Return the deep sites, under the conditions of a measurement."""
    return deep_sites(cosine, conditions.get("deep_over") or DEEP_OVER[0])


def of_cosines(cosine: Numbers, conditions: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what cosines per site give of the whole network: Γ, its concentration, the deep mean."""
    known = gamma_cosines(cosine, conditions)
    deep = mean([cosine[site] for site in deep_of(cosine, conditions)]) if cosine else None
    return {"gamma": mean(known), "gamma_concentration": concentration(known), "deep_cosine": deep}


def comparable(
    norms: Sequence[float | None], conditions: Mapping[str, Any]
) -> tuple[list[float | None], list[tuple[Any, ...]] | None]:
    """Return what growth compares, and the shapes within which it does.

    Of a stream, norms of one shape. Of layers, root mean squares ‖h‖/√d per unit, whatever the shapes: a wide layer
    has a longer state than a narrow one with the same activity.

    >>> comparable([4.0, 6.0], {"pool": "whole", "state_shapes": [[4], [3, 3]]})
    ([2.0, 2.0], None)
    """
    shapes = stream_shapes(conditions, len(norms))
    if not by_layer(conditions) or shapes is None:
        return list(norms), shapes
    return [n if n is None else n / max(1, prod(shape)) ** 0.5 for n, shape in zip(norms, shapes)], None


def stream_shapes(conditions: Mapping[str, Any], sites: int) -> list[tuple[Any, ...]] | None:
    """Return the shape of the stream at every site, where it was logged: norms of different shapes are not compared."""
    shapes = conditions.get("state_shapes")
    if not isinstance(shapes, list) or len(shapes) != sites:
        return None
    return [tuple(shape) if isinstance(shape, list) else (shape,) for shape in shapes]
