"""DFA written by hand: feedback matrices by name, and the output error that they carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from torch import Tensor, nn

from walkback.errors import InputError
from walkback.rules.rule import error_signal
from walkback.tracing.trace import Trace


def by_hand(
    model: nn.Module, matrices: Sequence[str], error: Callable[[Trace], Tensor] = error_signal
) -> Callable[[Trace], list[Tensor]]:
    """Return the credits a_l = e B_l of matrices that the model holds under these dotted names, one per site 0…L.

    Args:
        model: the network, with B_l (C, d_l) as parameter, buffer or plain tensor; (d_l, C) is turned.
        matrices: such as ["fc1.B", "fc2.B"]; what stands there when a batch is measured is used.
        error: trace -> (B, C); softmax − onehot by default.
    """
    tensors = []
    for name in matrices:
        try:
            tensors.append(attrgetter(name)(model))
        except AttributeError:
            tensors.append(None)
        if not isinstance(tensors[-1], Tensor) or tensors[-1].ndim != 2:
            raise InputError(
                f"Expected {name} to be a feedback matrix (C, d) of {type(model).__name__}, but it is "
                f"{'not there' if tensors[-1] is None else type(tensors[-1]).__name__}."
            )

    def credit(trace: Trace) -> list[Tensor]:
        if len(matrices) != len(trace.states):
            raise InputError(
                f"Expected one feedback matrix per site, {len(trace.states)}, but got {len(matrices)}: "
                f"{', '.join(matrices)}."
            )
        e, made = error(trace), []
        for name, state in zip(matrices, trace.states):
            b = attrgetter(name)(model).detach().to(e)
            if b.shape == (state.shape[-1], e.shape[1]) and b.shape[0] != b.shape[1]:
                b = b.T
            if b.shape != (e.shape[1], state[0].numel()):
                raise InputError(
                    f"Expected {name} to be ({e.shape[1]}, {state[0].numel()}), classes by width, but it is "
                    f"{tuple(b.shape)}."
                )
            made.append((e @ b).view_as(state))
        return made

    return credit
