"""What a batch may look like: (inputs, labels), where inputs are a tensor or the keywords of the model as a dict.

`{"input_ids": …, "attention_mask": …, "labels": …}` is a batch too: its labels are kept from the model, so that it
answers with logits and not with a loss of its own. A model that can't run without them gets them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from walkback.errors import InputError, cut, shown

Inputs = Tensor | Mapping[str, Any]
T = TypeVar("T")

LABELS = "labels"
MASK = "attention_mask"


def pairs(batches: Iterable[Any], model: nn.Module | None = None) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield batches as (inputs, labels); an error shows what arrived instead.

    >>> next(iter(pairs([{"input_ids": 0, "labels": 1}])))
    ({'input_ids': 0}, 1)
    """
    kept = model is not None and needs_labels(model)
    if isinstance(batches, (Tensor, str, Path, Mapping)) or not isinstance(batches, Iterable):
        raise InputError(
            f"Expected eval_batches to be an iterable of (inputs, labels) pairs, but got {type(batches).__name__}. "
            "Wrap a single batch in a list: [(x, y)]."
        )
    for index, batch in enumerate(batches):
        if isinstance(batch, Mapping):
            if LABELS not in batch:
                keys = cut(", ".join(map(str, batch)))
                raise InputError(
                    f"Expected batch {index} to have {LABELS!r}, but the dict has {keys}. Pass "
                    "(dict, labels) pairs, or for a causal language model {'input_ids': ids, 'labels': ids}."
                )
            yield {key: value for key, value in batch.items() if kept or key != LABELS}, batch[LABELS]
            continue
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            got = (
                f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
            )
            hint = " Wrap a single batch in a list: [(x, y)]." if isinstance(batch, Tensor) else ""
            raise InputError(f"Expected batch {index} to be a pair (inputs, labels), but got a {got}.{hint}")
        x, y = batch
        if isinstance(x, Mapping) and LABELS in x and not kept:
            x = {key: value for key, value in x.items() if key != LABELS}
        elif model is not None and kept:
            x = {LABELS: y, **(x if isinstance(x, Mapping) else {next(iter(_signature(model))): x})}
        yield x, y


def at_least_one(batches: Iterable[T]) -> Iterator[T]:
    """Yield what there is; an InputError where there is nothing."""
    nothing = True
    for batch in batches:
        nothing = False
        yield batch
    if nothing:
        used = "A generator that was used up before gives nothing: pass a list or a fresh loader."
        raise InputError(f"Expected at least one batch, but eval_batches is empty. {used}")


def takes_labels(model: nn.Module) -> bool:
    """Return whether the forward pass of a model takes `labels`, and so may have a loss of its own.

    >>> takes_labels(nn.Linear(2, 2))
    False
    """
    return LABELS in _signature(model)


def _signature(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a forward pass by name; {} of code without a signature."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def needs_labels(model: nn.Module) -> bool:
    """Return whether the forward pass of a model can't run without `labels`: a feedback rule may project them.

    >>> class Projecting(nn.Module):
    ...     def forward(self, x, labels):
    ...         return x
    >>> needs_labels(Projecting()), needs_labels(nn.Linear(2, 2))
    (True, False)
    """
    wanted = _signature(model).get(LABELS)
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return wanted is not None and wanted.kind in plain and wanted.default is inspect.Parameter.empty


def tensors(x: Inputs) -> dict[str, Tensor]:
    """Return the tensors of the inputs by name; "" for inputs that are one tensor."""
    if isinstance(x, Tensor):
        return {"": x}
    return {name: value for name, value in x.items() if isinstance(value, Tensor)}


def mapped(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return the same inputs with `change` applied to every tensor."""
    if isinstance(x, Tensor):
        return change(x)
    return {name: change(value) if isinstance(value, Tensor) else value for name, value in x.items()}


def per_sample(x: Inputs, batch: int) -> dict[str, Tensor]:
    """Return the tensors whose first axis is the batch: what is split into parts and identifies a sample."""
    return {name: t for name, t in tensors(x).items() if t.ndim and t.shape[0] == batch}


def split(x: Inputs, y: Tensor, size: int | None) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield a batch in parts of at most `size` samples (None: whole), each with its labels.

    >>> [len(y) for _, y in split(torch.zeros(5, 2), torch.zeros(5), 2)]
    [2, 2, 1]
    """
    if size is None or not isinstance(y, Tensor) or len(y) <= size:
        yield x, y
        return
    batch = len(y)
    for start in range(0, batch, size):
        rows = slice(start, start + size)
        yield mapped(x, lambda t: t[rows] if t.ndim and t.shape[0] == batch else t), y[rows]  # noqa: B023


def call(model: nn.Module, x: Inputs, **more: Any) -> Any:
    """Run the model on its inputs: one tensor as its first argument, a dict as keywords."""
    return model(x, **more) if isinstance(x, Tensor) else model(**x, **more)


def real_tokens(x: Inputs, batch: int) -> Bool[Tensor, "batch tokens"] | None:
    """Return which tokens of each sample are no padding, from `attention_mask`; None without one."""
    mask = None if isinstance(x, Tensor) else x.get(MASK)
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[0] != batch:
        return None
    return mask > 0 if mask.dtype != torch.bool else mask


def check_batch(x: Inputs, y: Tensor, index: int, device: torch.device | None) -> None:
    """Raise InputError unless (x, y) are finite tensors of one length on `device` (None: any)."""
    if isinstance(x, Mapping):
        inputs = tensors(x)
        if not inputs:
            got = shown(list(x)) if x else "nothing"
            raise InputError(f"Expected the inputs of batch {index} to have tensors, but got {got}.")
    else:
        inputs = {"": x}
    for name, value in (*inputs.items(), (LABELS, y)):
        if not isinstance(value, Tensor) or (value.ndim == 0 and name in ("", LABELS)):
            got = "a scalar tensor" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"Expected the {name or 'inputs'} of batch {index} to be a tensor with the batch first, but got {got}."
            )
    lengths = {t.shape[0] for t in inputs.values() if t.ndim}
    if len(y) == 0 or len(y) not in lengths:
        given = lengths.pop() if len(lengths) == 1 else sorted(lengths)
        raise InputError(
            f"Expected as many labels as inputs, and at least one, but batch {index} has {given} inputs and "
            f"{len(y)} labels."
        )
    for name, value in inputs.items():
        what = f"inputs[{name!r}]" if name else "inputs"
        if device is not None and value.device != device:
            raise InputError(
                f"Expected the {what} on the model's device, {device}, but batch {index} is on {value.device}. "
                + (
                    "A meta tensor has no values: load the data."
                    if value.is_meta
                    else f'Move one of them: x.to("{device}") or model.to("{value.device}").'
                )
            )
        # A sum is cheap, and overflow only looks closer. Masks that are added to attention hold −∞ on purpose.
        if "mask" not in name and value.is_floating_point() and not isfinite(value.sum().item()):
            bad = ~torch.isfinite(value)
            if bool(bad.any()):
                where = tuple(int(i) for i in bad.nonzero()[0])
                raise InputError(
                    f"Expected finite {what}, but batch {index} has {int(bad.sum())} NaN or infinite values, the first "
                    f"at {where}. Clean the data: nothing measured on it would mean anything."
                )
