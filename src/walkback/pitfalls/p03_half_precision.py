"""fp16 ends at 6e-8: a gradient of 5e-10 is zero in it. bf16 has fp32's range."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from walkback.pitfalls.nodes import argument, keyword, last, literal, method, owner, targets
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import MODEL, Script

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(3, "half-precision", "fp16 turns small gradients into zeros; bf16 does not", "lint, report")


def detect(script: Script) -> Found:
    """Find gradients stored in fp16, or taken through a network in fp16."""
    fix = "use bfloat16 or float32 where gradients are measured"
    scaled = script.has_call("GradScaler", "unscale_") or _scales(script)
    takes = not scaled and any(_takes_gradient(script, call) for call in script.calls())
    for call in script.calls():
        name = script.name(call.func)
        if isinstance(call.func, ast.Attribute) and _to_half(script, call):
            of = call.func.value
            if script.is_gradient(of):
                yield call, "fp16 ends at 6e-8: smaller gradients become zero", fix
            elif takes and _is_model(script, call, of) and not _only_infers(script, call):
                yield call, "gradients through a network in fp16 are zero below 6e-8", fix
        elif takes and _is_made_half(script, call) and not _only_infers(script, call):
            yield call, "gradients through a network in fp16 are zero below 6e-8", fix
        elif _is_half(script, keyword(call, "dtype")) and _holds_gradients(script, call):
            yield call, "fp16 ends at 6e-8: smaller gradients become zero", fix
        elif takes and _is_set_to_half(script, call):
            yield call, "gradients through a network in fp16 are zero below 6e-8", fix
        elif takes and name.endswith("autocast") and _autocasts_to_half(script, call, name):
            yield call, "under autocast to fp16 without a GradScaler, gradients below 6e-8 are zero", fix


def _takes_gradient(script: Script, call: ast.Call) -> bool:
    return script.differentiates(call) or method(call) == "backward"


def _scales(script: Script) -> bool:
    """Return whether the loss is scaled before it is differentiated, as by a scaler that was handed in."""
    losses = (owner(call) for call in script.calls() if method(call) == "backward")
    return any(isinstance(loss, ast.Call) and method(loss) == "scale" for loss in losses)


def _only_infers(script: Script, call: ast.Call) -> bool:
    """Return whether no gradients are taken here or later in the function: `.half()` changes the network for good."""
    after = [c for c in script.inside(script.scope(call)) if isinstance(c, ast.Call) and c.lineno > call.lineno]
    return script.without_gradients(call) and not any(_takes_gradient(script, c) for c in after)


def _to_half(script: Script, call: ast.Call) -> bool:
    if method(call) == "half" and not call.args:
        return True
    values = [*call.args, *(k.value for k in call.keywords)]
    return method(call) in ("to", "type", "astype") and any(_is_half(script, value) for value in values)


def _is_half(script: Script, node: ast.AST | None) -> bool:
    """Return whether it is torch.float16, "float16" and the like, or a name of one."""
    made = None if node is None else script.follow(node)
    if made is None or literal(made) in ("float16", "half", "fp16", "f2", "<f2", "e"):
        return made is not None
    package, _, name = script.name(made).rpartition(".")
    return name in ("float16", "half", "HalfTensor") and package.endswith(("torch", "numpy", "torch.cuda"))


def _is_model(script: Script, call: ast.Call, of: ast.expr) -> bool:
    """Return whether a network is cast: by its name, or by the name it is assigned to, as model = build().half()."""
    if MODEL.fullmatch(last(of)):
        return True
    made = next((up for up in script.above(call) if isinstance(up, ast.stmt)), None)
    named = isinstance(made, ast.Assign) and any(MODEL.fullmatch(last(target)) for target in targets(made))
    return named and isinstance(of, ast.Call) and isinstance(script.parents[call], (ast.Assign, ast.Attribute))


def _is_made_half(script: Script, call: ast.Call) -> bool:
    """Return whether a network is loaded, or everything made, in fp16."""
    if method(call) in ("set_default_dtype", "set_default_tensor_type"):
        return bool(call.args) and _is_half(script, call.args[0])
    return method(call) == "from_pretrained" and _is_half(script, keyword(call, "torch_dtype", "dtype"))


def _is_set_to_half(script: Script, call: ast.Call) -> bool:
    """Return whether a trainer is told to compute in fp16, where gradients are not taken by its own scaled backward."""
    told = keyword(call, "precision", "mixed_precision")
    value = literal(script.follow(told)) if told is not None else None
    scaled = any(method(c) == "backward" for c in script.calls())
    return value in ("16-true", "transformer-engine-float16") or (
        value in (16, "16", "16-mixed", "fp16") and not scaled
    )


def _holds_gradients(script: Script, call: ast.Call) -> bool:
    """Return whether gradients are put into what a call makes: np.array(grads, dtype=…), or a table filled later."""
    up = script.parents[call]
    names = [last(target) for target in up.targets] if isinstance(up, ast.Assign) else []
    put = [one.value for name in names for one in script.put_into(script.scope(call), name)]
    return any(map(script.is_gradient, [*call.args, *put]))


def _autocasts_to_half(script: Script, call: ast.Call, name: str) -> bool:
    dtype, device = argument(call, 1, "dtype"), argument(call, 0, "device_type")
    if dtype is not None:
        return _is_half(script, dtype)
    return name.endswith("cuda.amp.autocast") or literal(device) == "cuda"


def gradient(seed: int) -> Tensor:
    """Return (128, 32) g_L of a mean loss on a network whose stream exploded under a terminal norm, in fp32."""
    import torch

    from walkback.selftest import batches, network

    net = network(depth=4, gain=100.0, seed=seed).eval()
    x, y = batches(1, seed=seed + 1)[0]
    _, hidden = net(x, return_hidden=True)
    h = hidden[-1].detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(net.out_head(net.out_ln(h)), y)
    return torch.autograd.grad(loss, h)[0]


def show(seed: int = 0) -> Shown:
    """Return the mean gradient norm after a trip through fp16."""
    import torch

    from walkback.measures.rounding import smallest_subnormal

    g = gradient(seed)

    def norm(stored: Tensor) -> float:
        return float(stored.double().norm(dim=1).mean())

    bf16 = norm(g.to(torch.bfloat16))
    return Shown(
        "‖g_L‖ stored in fp16",
        norm(g.to(torch.float16)),  # walkback: ignore[P03]
        norm(g),
        f"the smallest number of fp16 is {smallest_subnormal(torch.float16):.1e}: smaller ones become zero. bf16 keeps "
        f"{bf16:.3g} of {norm(g):.3g}.",
    )
