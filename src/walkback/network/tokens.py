"""Where states of (B, T, d) are read: the tokens that the gradient of the last site shows."""

from __future__ import annotations

from collections.abc import Collection

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from walkback.errors import AnatomyError


def read_at(deepest: Float[Tensor, "batch tokens width"]) -> int | str:
    """Return the token all samples are read at (−1: the last), "readout" if each has its own, "mean" if several.

    >>> g = torch.zeros(2, 3, 4)
    >>> g[:, 1] = 1.0
    >>> read_at(g)
    1
    """
    used = (deepest != 0).any(-1)
    counts = used.sum(1)
    if not bool((counts == 1).any()) or bool((counts > 1).any()):
        return "mean"
    tokens = used[counts == 1].int().argmax(1).unique()
    if len(tokens) > 1:
        return "readout"
    token = int(tokens)
    return token if token == 0 or token != used.shape[1] - 1 else -1


def read_still(deepest: Float[Tensor, "batch tokens width"], token: int, index: int) -> int | str:
    """Return the token if this batch reads it as the first did, "readout" if each sample has its own; refuse others.

    >>> g = torch.zeros(2, 3, 4)
    >>> g[:, 1] = 1.0
    >>> read_still(g, 1, 5), read_still(g, 2, 5)
    (1, 'readout')
    """
    used = (deepest != 0).any(-1)
    if not bool((used.sum(1) > 1).any()) and bool(used.any()):
        moved = len(used[used.any(1)].int().argmax(1).unique()) > 1 or not bool(used[:, token].any())
        return "readout" if moved else token  # the last real token, after a batch without padding: the same as before
    used[:, token] = False
    if bool(used.any()):
        raise AnatomyError(
            f"Expected the readout to use token {token}, as the first batch showed, but batch {index} uses others "
            '(padding of different length?). Say it: Anatomy.of(model, ..., pool="readout") reads each sample at '
            "the token its own gradient shows."
        )
    return token


def some_tokens(deepest: Float[Tensor, "batch tokens width"]) -> list[int] | None:
    """Return the tokens with a gradient, if all samples have the same ones and not all (cls may be left out).

    >>> g = torch.zeros(2, 9, 4)
    >>> g[:, :2] = 1.0
    >>> some_tokens(g)
    [0, 1]
    """
    used = (deepest != 0).any(-1)
    used = used[used.any(1)]
    same = len(used) > 0 and bool((used == used[0]).all()) and not bool(used[0].all())
    return used[0].nonzero().flatten().tolist() if same else None


def with_gradient(deepest: Float[Tensor, "batch tokens width"]) -> Bool[Tensor, "batch tokens"] | None:
    """Return (B, T): the tokens that each sample reads; None where all are. A sample that shows none counts all.

    >>> with_gradient(torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]]))
    tensor([[ True, False],
            [ True,  True]])
    """
    used = (deepest != 0).any(-1)
    used = used | ~used.any(1, keepdim=True)
    return None if bool(used.all()) else used


def is_time_last(
    deepest: Float[Tensor, "batch rows columns"], wide: Collection[int], channels: Collection[int]
) -> bool:
    """Return whether a state is (B, C, T) rather than (B, T, d), from where its gradient is zero or constant.

    First the sizes decide that weights in the blocks have: `wide` those of last axes (Linear, LayerNorm), `channels`
    those of second axes (Conv1d, BatchNorm1d). A feature that nothing reads has no gradient either.

    >>> g = torch.randn(2, 3, 1).expand(2, 3, 5)  # the mean over the last axis is read
    >>> is_time_last(g, [], []), is_time_last(g.mT, [], [])
    (True, False)
    """
    rows, columns = deepest.shape[1:]
    if (columns in wide) != (rows in channels):
        return rows in channels
    shown = deepest[(deepest != 0).flatten(1).any(1)]
    if len(shown):
        sparse = [not bool((shown != 0).any(axis).all()) for axis in (2, 1)]  # some rows, some columns are not read
        if sparse[0] != sparse[1]:
            return sparse[1]
        even = [n > 1 and bool((shown == shown.narrow(axis, 0, 1)).all()) for axis, n in ((1, rows), (2, columns))]
        if even[0] != even[1]:
            return even[1]
    return False


def only(tokens: list[int], deepest: Float[Tensor, "batch tokens width"], index: int) -> Bool[Tensor, "batch tokens"]:
    """Return (B, T): the tokens that count in averages, where the readout reads a few.

    >>> only([0], torch.tensor([[[1.0], [0.0]]]), 0)
    tensor([[ True, False]])
    """
    mask = torch.zeros(deepest.shape[:2], dtype=torch.bool, device=deepest.device)
    mask[:, [t for t in tokens if t < mask.shape[1]]] = True
    if bool((deepest != 0).any(-1)[~mask].any()):
        raise AnatomyError(
            f"Expected the readout to use tokens {tokens}, as the first batch showed, but batch {index} "
            'uses others. Say it: Anatomy.of(model, ..., pool="mean") averages over all tokens.'
        )
    return mask
