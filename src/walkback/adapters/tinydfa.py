"""TinyDFA: its feedback matrix is drawn in the first forward pass that trains, and no state dict holds it."""

from __future__ import annotations

from typing import Any

from torch import nn

from walkback.errors import InputError
from walkback.tracing.recorded import Recorded, recorded


def tinydfa(model: nn.Module, **options: Any) -> Recorded:
    """Return the credits of a network with TinyDFA's layers: `diagnose(model, batches, credit=tinydfa(model))`.

    The network must have its feedback: measuring a network that was just loaded would draw another one than it was
    trained with. Options as in `walkback.recorded`.
    """
    tops = [(n, m) for n, m in model.named_modules() if hasattr(m, "dfa_layers") and hasattr(m, "feedback_matrix")]
    if not tops:
        raise InputError(
            "Expected a network with a DFA module at its output, one with dfa_layers and a feedback_matrix, but there "
            f"is none in {type(model).__name__}."
        )
    empty = [name or "the network" for name, m in tops if m.feedback_matrix is None]
    if empty:
        raise InputError(
            f"Expected the feedback matrix that the network was trained with, but {', '.join(empty)} has none yet: it "
            "is drawn in the first training pass, and a state dict does not hold it. Save it with the weights, and set "
            "feedback_matrix and initialized = True after loading."
        )
    return recorded(model, **options)
