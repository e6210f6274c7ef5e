"""Per-sample losses: cross-entropy of classes, probabilities and tokens, and whether labels fit."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.network.values import modules_of, widened

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor) -> Float[Tensor, " batch"]:
    """Return per-sample cross-entropy in at least float32: classes (B,), probabilities (B, C), or tokens (B, T).

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1])).item() == torch.tensor(2.0).log().item()
    True
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    check_labels(logits, y)
    if not y.is_floating_point():
        y = y.long()
    if logits.ndim == 3:
        token = F.cross_entropy(logits.transpose(1, 2), y, reduction="none", ignore_index=-100)
        return token.sum(1) / (y != -100).sum(1).clamp(min=1)
    return F.cross_entropy(logits, y if not y.is_floating_point() else y.to(logits.dtype), reduction="none")


def next_token_loss(logits: Float[Tensor, "batch tokens classes"], y: Int[Tensor, "batch tokens"]) -> Tensor:
    """Return per-sample cross-entropy of a causal language model, (B,): the mean over a sample's own tokens.

    Labels are the inputs, as the model's own loss takes them: position t predicts label t + 1, and −100 is left out.

    >>> sure = torch.tensor([[[0.0, 99.0], [99.0, 0.0]]])
    >>> next_token_loss(sure, torch.tensor([[0, 1]])).item()
    0.0
    """
    if logits.ndim == 3 and logits.shape[:2] == y.shape and y.shape[1] > 1:
        return cross_entropy(logits[:, :-1], y[:, 1:])
    return cross_entropy(logits, y)


def check_labels(logits: Tensor, y: Tensor) -> None:
    """Raise InputError unless `y` are classes or probabilities that fit `logits`."""
    if logits.ndim not in (2, 3):
        raise InputError(
            f"Expected logits of shape (B, C) or (B, T, C), but the network returned {tuple(logits.shape)}. "
            "Pass loss=... for other tasks."
        )
    classes = logits.shape[-1]
    if y.dtype == torch.bool or y.is_complex():
        raise InputError(f"Expected labels as integer classes or probabilities, but got {y.dtype}. Use y.long().")
    if y.device != logits.device:
        remedy = "A meta tensor has no values: load them" if y.is_meta else f'Use y.to("{logits.device}")'
        raise InputError(f"Expected labels on {logits.device} with the logits, but they are on {y.device}. {remedy}.")
    if y.is_floating_point():
        if y.shape != logits.shape or logits.ndim != 2:
            raise InputError(
                f"Expected integer class labels of shape {tuple(logits.shape[:-1])} or probabilities of shape "
                f"{tuple(logits.shape)}, but got {y.dtype} of shape {tuple(y.shape)}. Use y.long() for classes."
            )
        _check_probabilities(y)
        return
    if y.shape != logits.shape[:-1]:
        raise InputError(
            f"Expected labels of shape {tuple(logits.shape[:-1])} to go with logits of shape "
            f"{tuple(logits.shape)}, but got {tuple(y.shape)}."
        )
    y = y[y != -100] if logits.ndim == 3 else y
    low, high = torch.stack(torch.aminmax(y)).tolist() if y.numel() else (0, 0)
    if low < 0 or high >= classes:
        raise InputError(
            f"Expected labels between 0 and {classes - 1}, since the network has {classes} outputs, but got "
            f"{low}…{high}. Labels that count from 1 need y - 1."
        )


def _check_probabilities(y: Float[Tensor, "batch classes"]) -> None:
    if not y.numel():
        return
    sums = widened(y).sum(1)
    least, low, high = torch.stack([widened(y).amin(), *torch.aminmax(sums)]).tolist()  # one wait for the device
    if not (least >= 0 and isfinite(low) and isfinite(high)):
        raise InputError(
            "Expected soft labels to be probabilities, but some are negative or not finite. Pass a softmax of them, or "
            "loss=... for targets of another kind."
        )
    slack = max(1e-3, 4 * torch.finfo(y.dtype).eps)  # bfloat16 knows 0.9 as 0.8984
    if max(1 - low, high - 1) > slack:
        raise InputError(
            f"Expected soft labels to be probabilities, whose rows sum to 1 (within {slack:.2g}), but they sum to "
            f"{low:.6g}…{high:.6g}. Divide them by y.sum(1, keepdim=True); for several labels per sample pass "
            'loss=..., such as lambda z, y: F.binary_cross_entropy_with_logits(z, y, reduction="none").sum(1).'
        )


def is_causal(model: nn.Module) -> bool:
    """Return whether this is a Hugging Face language model, bare or wrapped, whose labels are its inputs."""
    return any(type(m).__name__.endswith(("ForCausalLM", "LMHeadModel")) for m in modules_of(model))


def is_shifted(own: Tensor, logits: Tensor, y: Tensor) -> bool | None:
    """Return whether a model's own loss of `labels=y` is that of the next token, of the same one, or (None) another.

    >>> logits, y = torch.eye(3)[[0, 1, 2, 0]].unsqueeze(0), torch.tensor([[0, 1, 2, 0]])
    >>> is_shifted(F.cross_entropy(logits.flatten(0, 1), y.flatten()), logits, y)
    False
    """
    wide, right = widened(logits.detach()), float(own.detach())
    same = float(F.cross_entropy(wide.flatten(0, 1), y.flatten(), ignore_index=-100))
    shifted = float(F.cross_entropy(wide[:, :-1].flatten(0, 1), y[:, 1:].flatten(), ignore_index=-100))
    near = [abs(value - right) <= 1e-3 * abs(right) for value in (same, shifted)]
    return near[1] if near[0] != near[1] else None


class SampleLoss:
    """The loss of a session, called with (logits, labels): one loss per sample, whose sum is differentiated.

    Args:
        model: the network; the labels of a causal language model are its inputs.
        custom: the user's loss, or None for cross-entropy. Where it returns a mean, that is spread evenly.
    """

    def __init__(self, model: nn.Module, custom: Loss | None = None) -> None:
        if custom is not None and not callable(custom):
            raise InputError(f"Expected loss to be a function of (logits, labels), but got {type(custom).__name__}.")
        self.custom = custom
        self.next_token = custom is None and is_causal(model)  # by its name, until its own loss was seen
        self.per_sample = True  # False once a custom loss has returned a mean
        self.name = "cross-entropy" if custom is None else getattr(custom, "__name__", type(custom).__name__)
        self._no_sum = False  # True once the mean was seen to be no sum

    def __call__(self, logits: Tensor, y: Tensor) -> Float[Tensor, " batch"]:
        """Return the (B,) losses of a batch."""
        if self.custom is None:
            next_token = self.next_token and y.ndim == 2 and logits.ndim == 3
            self.name = "cross-entropy of the next token" if next_token else "cross-entropy"
            return next_token_loss(logits, y) if next_token else cross_entropy(logits, y)
        try:
            loss = self.custom(logits, y)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"Expected loss(logits, labels) to take logits of shape {tuple(logits.shape)}, but it raised "
                f"{type(error).__name__}: {error}. It is given the logits alone: of a network that returns more (heads "
                "in a list, a tuple, a dict), the first tensor. To use all of them, wrap the network in a module that "
                "returns torch.cat of them, and split that in the loss."
            ) from error
        batch = y.shape[0]
        if not isinstance(loss, Tensor) or loss.shape not in ((), (batch,)):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(
                f"Expected loss(logits, labels) to return one loss per sample, shape ({batch},), or their mean, "
                f"shape (), but got {shape}. Average over tokens or pixels, not over samples."
            )
        if loss.ndim:
            return loss
        self._refuse_sum(self.custom, loss, logits, y)
        self.per_sample = self.per_sample and batch == 1
        return loss.expand(batch)

    def wants_own(self, y: Tensor) -> bool:
        """Return whether the model's own loss tells if labels are shifted: they are tokens, and none was passed."""
        return self.custom is None and y.ndim == 2 and not y.is_floating_point() and y.shape[1] > 1

    def compare(self, own: object, logits: Tensor, y: Tensor) -> None:
        """Take the shift that the model's own loss has, where it shows one."""
        if not isinstance(own, Tensor) or own.numel() != 1 or logits.ndim != 3 or logits.shape[:2] != y.shape:
            return
        shifted = is_shifted(own.reshape(()), logits, y.long())
        self.next_token = self.next_token if shifted is None else shifted

    def _refuse_sum(self, custom: Loss, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Refuse a sum over samples on the first batch of more than one: it makes every gradient B times too large."""
        half = len(y) // 2
        if self._no_sum or not half or logits.shape[0] != len(y):
            return
        self._no_sum = True
        with torch.no_grad():
            parts = [float(custom(logits[s].detach(), y[s])) for s in (slice(half), slice(half, None))]
        whole, mean = float(loss.detach()), (parts[0] * half + parts[1] * (len(y) - half)) / len(y)
        if abs(whole - sum(parts)) < 1e-3 * abs(whole) < abs(whole - mean):
            raise InputError(
                "Expected loss(logits, labels) to return one loss per sample or their mean, but it returns a sum: "
                'it doubles with the batch. Use reduction="none" or reduction="mean".'
            )
