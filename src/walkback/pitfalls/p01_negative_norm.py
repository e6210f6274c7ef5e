"""`tensor.norm(-1)`: −1 is taken for p, not for the axis."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from walkback.pitfalls.nodes import argument, keyword, method
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(1, "negative-norm", "tensor.norm(-1) is the L₋₁ norm of everything, not a row norm", "lint")

_FUNCTIONS = ("torch.norm", "linalg.norm", "linalg.vector_norm", "functional.normalize")


def detect(script: Script) -> Found:
    """Find a negative p in a norm that names no axis."""
    for call in script.calls():
        partial = method(call) == "partial" and bool(call.args)  # its first argument stands where the vector would
        name = script.name(call.args[0] if partial else call.func)
        is_method = method(call) == "norm" and isinstance(call.func, ast.Attribute)
        at = 1 if name.endswith(_FUNCTIONS) else 0 if is_method else None
        if at is None or keyword(call, "dim", "axis") is not None or len(call.args) > at + 1:
            continue
        given = argument(call, at, "p", "ord")
        p, spelled = (
            (script.flow.of(given).number if given is not None else None),
            "axis" if name.startswith(("numpy", "jax")) else "dim",
        )
        if p is None and isinstance(given, ast.Name) and re.fullmatch(r"(\w+_)?axis|dim|last_dim", given.id):
            yield call, f"{given.id} is taken for p, so this is no norm over that axis", f"write {spelled}={given.id}"
        elif p is not None and p < 0 and not (p == -2 and keyword(call, "ord") is not None):  # a singular value
            yield (
                call,
                f"{p:g} is taken for p, so this is the L{p:g} norm and not a norm over the last axis",
                f"write {spelled}={p:g}",
            )


def states(seed: int) -> Tensor:
    """Return (128, 256) standard normal states: every row has a norm of about 16."""
    import torch

    return torch.randn(128, 256, generator=torch.Generator().manual_seed(seed))


def show(seed: int = 0) -> Shown:
    """Return the norm of a state, taken both ways."""
    h = states(seed)
    wrong = float(h.norm(-1))  # walkback: ignore[P01]
    right = float(h.norm(dim=-1).mean())
    return Shown(
        "norm of a state",
        wrong,
        right,
        "norm(-1) is (Σ 1/|x|)⁻¹ over all "
        f"{h.numel()} entries: one number near zero for the whole tensor, the smaller the more entries there are. "
        "norm(dim=-1) gives one L2 norm per row.",
    )
