"""What sign-symmetry, the weight mirror and Kolen–Pollack share: a feedback weight beside every weight of the blocks.

Credit goes down through the blocks as in backpropagation, through the same skip connections, norms and slopes of
nonlinearities, but every linear map and convolution carries it with a feedback weight B in place of its own W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from walkback.errors import InputError
from walkback.network.values import modules_of
from walkback.rules.rule import Parts, Rule, buffers_kept
from walkback.tracing.trace import TrainingPass

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayeredFeedback(Rule):
    """a_L = g_L, a_l = a_{l+1} + J_l(B)ᵀ a_{l+1}: J_l(B) is the Jacobian of block l+1 with B for W in its slopes.

    A subclass says what B is: `feedback` gives one tensor per layer, shaped like its weight.
    """

    exact_top = True
    reads_weights = True

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Find the layers of the blocks; a subclass makes its feedback here."""
        self.parts = parts
        found = [[m for m in modules_of(block) if isinstance(m, LAYERS)] for block in parts.blocks]
        known = {id(m.weight) for layers in found for m in layers}
        other = [n for b in parts.blocks for n, p in b.named_parameters() if p.ndim > 1 and id(p) not in known]
        if other or not known:
            raise InputError(
                f"Expected blocks whose weights are those of Linear and Conv layers, but got {other or 'none'}: "
                f"{type(self).__name__} has no feedback for them."
            )
        self.layers = tuple(m for layers in found for m in layers)

    def feedback(self) -> Sequence[Tensor]:
        """Return B of every layer of the blocks, shaped like its weight."""
        raise NotImplementedError

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return one vector-Jacobian product per block, from the top down."""
        credits = [trace.grads[-1]]
        with buffers_kept(self.parts.blocks), carried_by(self.layers, self.feedback()), torch.enable_grad():
            for block, state in zip(reversed(self.parts.blocks), reversed(trace.states[:-1])):
                h = state.detach().requires_grad_()
                (down,) = torch.autograd.grad(block(h), h, credits[0])
                credits.insert(0, credits[0] + down)
        return credits

    def describe(self) -> dict[str, object]:
        """Say where credit goes."""
        return {"target": "every token or position, each its own"}


@contextmanager
def carried_by(layers: Sequence[nn.Module], feedback: Sequence[Tensor]) -> Iterator[None]:
    """Let every layer answer as always, inside, and its backward pass go through its feedback weight."""

    def swapped(weight: Tensor):
        def hook(layer: nn.Module, args: tuple[Tensor, ...], made: Tensor) -> Tensor:
            handles[layer].remove()  # functional_call runs the layer's hooks too
            way = functional_call(layer, {"weight": weight.detach().to(made.dtype)}, args)
            handles[layer] = layer.register_forward_hook(hook)
            return made.detach() + (way - way.detach())  # the value of one, the slope of the other

        return hook

    handles = {}
    try:
        for layer, weight in zip(layers, feedback):
            handles[layer] = layer.register_forward_hook(swapped(weight))
        yield
    finally:
        for handle in handles.values():
            handle.remove()


def fan_in(weight: Tensor) -> int:
    """Return how many numbers one output is a sum of."""
    return weight[0].numel()
