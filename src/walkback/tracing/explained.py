"""Errors of a pass, with what the user needs to understand them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, WalkbackError, cut
from walkback.network.batch import needs_labels
from walkback.network.values import places
from walkback.tracing.cuts import CutGraph
from walkback.tracing.derived import has_custom_backward

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture


def explained(error: Exception, model: nn.Module, batch: int, guessed: Sequence[str]) -> Exception:
    """Return an error of a pass, or another one for it, with where it was raised and which blocks were guessed."""
    made = [name for name, kept in places(model) if kept.is_inference()]
    if made and "Inference tensors" in str(error):
        error = InputError(
            f"Expected buffers that a backward pass can use, but {made[0]} was made under "
            "torch.inference_mode(). Outside it, put a clone in its place: module.name = module.name.clone()."
        )
    error.add_note(f"(while measuring batch {batch})")
    if isinstance(error, TypeError) and ".forward() missing" in str(error):
        error.add_note("(inputs that are several come as a dict of the network's keywords: ({name: tensor}, y))")
    elif needs_labels(model) and not isinstance(error, AnatomyError):
        error.add_note(
            "(forward takes labels, and is given those of the batch. Where it wants another form, such as one-hot "
            "rows, inputs come as a dict of the network's keywords: ({name: tensor, 'labels': tensor}, y))"
        )
    if isinstance(error, AnatomyError) and guessed:
        error.add_note(f"(guessed: the blocks are {guessed[0]} to {guessed[-1]}; name others with anatomy=…)")
    return error


def refuse_own_error(error: Exception, losses: Tensor) -> None:
    """Raise InputError for an error of the network's own backward code, which is not torch's."""
    if isinstance(error, WalkbackError) or "inplace operation" in str(error) or not has_custom_backward(losses):
        return
    raise InputError(
        "Expected the network's backward pass to run in eval mode, in which it is measured, but its own autograd "
        f"Function raised {cut(f'{type(error).__name__}: {error}', 160)}. Code of reversible blocks keeps random "
        "states in training mode only: measure an equal network without it."
    ) from error


def complete(capture: Capture, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Return the gradients, once every site has one."""
    missing = [site for site, g in enumerate(grads) if g is None]
    if missing and (several := capture.of_several(missing[0] - 1)):
        raise AnatomyError(
            f"Expected the loss to depend on every site, but no gradient reaches site {missing[0]}: {several}"
        )
    if missing:
        raise CutGraph([f"site {site}" for site in missing])
    return cast(tuple[Tensor, ...], grads)
