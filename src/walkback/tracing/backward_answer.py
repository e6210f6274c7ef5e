"""What finite differences say of the reference, and every reason why they may say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Answer = Literal["agrees", "altered", "cannot-tell"]
Labels = Literal["given", "permuted"]

# Every cause of "cannot-tell": what was found, and what to do.
_WIDER = "Measure a float32 copy outside autocast"
CAUSES: dict[str, tuple[str, str]] = {
    "not-needed": (
        "not needed: the forward pass has no custom autograd Function, no hook, no cut in its graph, and no numbers "
        "that leave torch",
        "",
    ),
    "no-copy": ("{needs}its weights can't be copied to float64: {what}", _WIDER),
    "not-run": (
        "{needs}the network can't be run again from its sites: {what}",
        "Measure a copy in float32, outside autocast, that takes any number of samples",
    ),
    "random": ("the forward pass is random: the same samples get other logits when they are run again", "Seed it"),
    "coupled": (
        "some samples alone get other logits than within their batch: the forward pass couples its samples",
        "Measure the network in a mode that keeps its samples apart",
    ),
    "no-axis": ("what the network returns has no axis of samples", "Return logits with the samples first"),
    "nonfinite": ("the network or its gradient is not finite", "Measure where numbers are finite"),
    "flat": ("no state changes the loss: every gradient is zero", "Measure other samples"),
    "rounding": (
        "finite differences are too noisy here: rounding hides every change of the logits",
        "Measure a float64 copy",
    ),
    "kinks": (
        "finite differences are too noisy here: the slopes to both sides differ, and beside the batch too",
        "Measure other samples",
    ),
    "casts": (
        "the network rounds to {what} inside, where a small step changes nothing",
        "Measure a copy that computes in one type",
    ),
    "steps": (
        "finite differences disagree with each other: small steps say that the reference is off by {what:.2%}, large "
        "ones that it is right, as they do where a layer rounds unseen",
        "Measure a copy that computes in torch",
    ),
    "tie": (
        "the reference is off by {what:.2%} on the batch and right beside it: autograd chose a value where states are "
        "exactly equal, or exactly zero",
        "Measure other samples",
    ),
    "unsteady": (
        "the reference is off by {what:.2%}, and right when it is taken again: the backward pass changes from call to "
        "call",
        "Make it repeatable",
    ),
    "dtype": (
        "the backward pass is right in float64 and off by {what:.2%} in the network's own type",
        "Measure a float64 copy",
    ),
    "loss": (
        "the loss has something that can alter its gradient, and no change of it can be read",
        "Write the loss in plain torch operations",
    ),
    "side-input": (
        "the loss reads more than the logits, and returns a mean",
        "Return one loss per sample, or leave out what it reads beside the logits",
    ),
}


@dataclass(frozen=True)
class BackwardCheck:
    """What finite differences say of the reference."""

    answer: Answer  # "agrees", "altered" or "cannot-tell"
    cause: str = ""  # of "altered", what is: "network" or "loss"; of "cannot-tell", a key of CAUSES; else ""
    # |change − what the reference predicts| in units of the change to be expected, the largest but one of all probes.
    # None: could not be told
    error: float | None = None
    limit: float = 0.0  # above this the reference is not the derivative
    sites: tuple[int, ...] = ()  # the sites that disagree, where the check failed
    samples: int = 0  # how many samples were read
    labels: Labels = "given"  # "given", or "permuted" where every gradient of the given ones is zero, or nearly
    dtype: str = ""  # what the finite differences were computed in
    values: Mapping[str, Any] = field(default_factory=dict)  # what the sentence of `cause` names

    @property
    def agrees(self) -> bool | None:
        """True, False, or None when it could not be told."""
        return {"agrees": True, "altered": False, "cannot-tell": None}[self.answer]

    @property
    def why(self) -> str:
        """The cause of "cannot-tell" as a sentence, without its full stop."""
        return CAUSES[self.cause][0].format(**self.values) if self.answer == "cannot-tell" else ""

    @property
    def remedy(self) -> str:
        """What to do where it can't be told, as a sentence without its full stop."""
        return CAUSES[self.cause][1] if self.answer == "cannot-tell" else ""


class Untold(Exception):
    """Why it can't be told, whatever the dtype."""

    def __init__(self, cause: str, **values: Any) -> None:
        super().__init__(cause)
        self.cause, self.values = cause, values
