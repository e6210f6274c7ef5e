"""The stream itself, seen in the graph: is its gradient the one that is taken at the outputs of the blocks?

∂loss/∂f_l is ∂loss/∂h_l only where h_l is h_{l-1} + f_l, and f_l is used for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from walkback.errors import AnatomyError
from walkback.network.values import widened
from walkback.notes import Note

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture


def stream_edges(capture: Capture) -> dict[int, GradientEdge]:
    """Return site -> edge of what is received there, where its graph says it is a sum with the stream before."""
    below = {0: capture.edges[0], **capture.streams}
    return {
        site: edge
        for site, edge in capture.streams.items()
        if site - 1 in below and any(node is below[site - 1].node for node, _ in edge.node.next_functions)
    }


def last_stream(capture: Capture, losses: Tensor) -> dict[int, GradientEdge]:
    """Return {L: edge of its stream} where no module receives it: where the stream meets what block L returns."""
    met = _meeting(losses, capture.edges[capture.depth], capture.edges[capture.depth - 1])
    return {} if met is None else {capture.depth: met}


def refuse_unlike_streams(
    capture: Capture, streams: Mapping[int, Tensor | None], grads: Sequence[Tensor]
) -> Note | None:
    """Raise AnatomyError where the gradient at a branch is not that of its stream; a note where that can't be seen.

    Only for blocks that return the branch.
    """
    for site, right in streams.items():
        ours = grads[site]
        if right is None or right.numel() != ours.numel():
            continue
        right, ours = widened(right), widened(ours)
        if right.shape != ours.shape:  # written in place through a view: the same numbers, in whatever order
            right, ours = right.flatten().sort().values, ours.flatten().sort().values
        if bool((right - ours).norm() > 0.02 * right.norm()):
            raise AnatomyError(
                f"Expected what {capture.anatomy.called(site - 1)} returns to be added to the stream as it is, "
                "and to be used nowhere else, but the gradient at its output is another than that of the stream "
                f"(‖g‖ {float(ours.norm()):.2g}, of the stream {float(right.norm()):.2g}): a scale outside the "
                "block, or something else that reads it. Name blocks that include the scale, or wrap them so that "
                "they return the new state."
            )
    last = capture.depth
    right = streams.get(last)
    if right is None or right.numel() != grads[last].numel():
        block = capture.anatomy.names[len(capture.anatomy.stems) + last - 1]
        return Note("unseen-sum", last, {"before": last - 1, "block": block})
    return None


def refuse_copy(capture: Capture, grads: Sequence[Tensor]) -> None:
    """Raise AnatomyError where block 1 got a copy: g_0 = g_1 + J_f1ᵀ g_1 only if it is handed the stream itself."""
    if grads[0].shape != grads[1].shape or capture.first_made is None:
        return
    (through,) = torch.autograd.grad(
        capture.first_made, [capture.edges[0]], grad_outputs=grads[1], allow_unused=True, retain_graph=True
    )
    through = torch.zeros_like(grads[0]) if through is None else through
    got, upper, through = widened(grads[0]), widened(grads[1]), widened(through)
    skip, copy = (got - through - upper).norm(), (got - through).norm()
    if copy < 0.01 * skip:
        raise AnatomyError(
            f"Expected {capture.anatomy.called(0)} to receive the stream itself, but it receives a copy, so the "
            "gradient of site 0 can't be read there. Call block(h) with the same h that is added to."
        )


def _meeting(losses: Tensor, upper: GradientEdge, lower: GradientEdge) -> GradientEdge | None:
    """Return where what was made at `upper` first meets what came from `lower` on a way past it; None if nowhere."""
    below: list[Any] = [lower.node]
    while len(below[-1].next_functions) == 1 and below[-1].next_functions[0][0] is not None:
        below.append(below[-1].next_functions[0][0])  # of a copy or a view, what it was taken from is `lower` too
    parents: dict[Any, list[Any]] = {}
    todo: list[Any] = [losses.grad_fn]
    while todo:
        node = todo.pop()
        for child, _ in () if node is None or node is upper.node or node in below else node.next_functions:
            if child not in parents:
                todo.append(child)
            parents.setdefault(child, []).append(node)

    def above(*nodes: Any) -> set[Any]:
        reached, todo = set(), [*nodes]
        while todo:
            new = set(parents.get(todo.pop(), ())) - reached
            reached |= new
            todo += new
        return reached

    both = above(upper.node) & above(*below)
    first = [node for node in both if not any(child in both for child, _ in node.next_functions)]
    return GradientEdge(first[0], 0) if len(first) == 1 else None
