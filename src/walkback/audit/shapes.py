"""The fields of a run's files that tables and figures read, and their types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from walkback.errors import FormatError, shown

Numbers = list[float | None]
Accuracy = Annotated[float, Field(ge=0, le=1)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Weights(_Fields):
    growth: list[Numbers]
    product_frobenius: Numbers
    product_spectral: Numbers


class _Row(_Fields):
    epoch: int
    test_acc: Accuracy
    train_loss: float | None = None
    test_loss: float | None = None
    per_layer: dict[str, Numbers | None]
    values: dict[str, float | None]
    weights: _Weights | None = None


class _Spread(_Fields):
    mean: float
    std: float


class _Fresh(_Fields):
    draws: int
    gamma: _Spread | None = None
    deep_cosine: _Spread | None = None


class _Run(_Fields):
    epochs: int
    initial: _Row
    diverged: str | None = None
    train_loss_delta: float | None = None
    weight_growth: list[Numbers] | None = None
    rule: dict[str, Any] | None = None
    fresh_feedback: _Fresh | None = None
    test_correct: str | None = None


class _Report(_Fields):
    headline_acc: Accuracy
    values: dict[str, float | None]
    per_layer: dict[str, Numbers | None]
    controls: dict[str, Numbers | None]
    run: _Run


class _Spec(_Fields):
    classes: int | None = None


class _Recipe(_Fields):
    model: str
    name: str
    lr: float
    weight_decay: float
    schedule: str
    batch_size: int
    epochs: int
    seed: int


class _Probe(_Fields):
    accuracy: Accuracy
    train_accuracy: Accuracy
    recipe: _Recipe


def check(kind: str, found: Any, name: str) -> None:
    """Complain of the first field of a "spec", "row", "report" or "probe" that is not what it should be.

    >>> try:
    ...     check("row", {"epoch": 1, "test_acc": "good", "per_layer": {}, "values": {}}, "row 1 of trajectory.jsonl")
    ... except FormatError as error:
    ...     print(error)
    Expected test_acc in row 1 of trajectory.jsonl to be a valid number, but got 'good'.
    """
    try:
        {"spec": _Spec, "row": _Row, "report": _Report, "probe": _Probe}[kind].model_validate(found)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = ".".join(str(part) for part in wrong["loc"]) or "everything"
        if wrong["type"] == "missing":
            having = "have" if kind == "probe" else "be that of a training run, with"
            raise FormatError(f"Expected {name} to {having} {field}, but it has none.") from None
        wanted = wrong["msg"].removeprefix("Input should be ")
        raise FormatError(f"Expected {field} in {name} to be {wanted}, but got {shown(wrong['input'])}.") from None
