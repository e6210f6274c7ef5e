"""What a network makes after its last block, operation by operation: the last site may be handed to no module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture


class Tail(TorchFunctionMode):
    """Hands the tensors that are made after the last block to a capture, those of a state's shape with a gradient."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and look at what it made."""
        result = func(*args, **(kwargs or {}))
        capture = self._capture
        # Inside an autograd Function gradients are off: what is made there is in no graph.
        if capture.is_behind and isinstance(result, Tensor) and torch.is_grad_enabled() and result.is_floating_point():
            with torch._C.DisableTorchFunction():
                in_graph = result.grad_fn is not None
            if in_graph:
                capture.after_operation(result)
        return result
