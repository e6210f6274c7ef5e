"""What modules take, hold and return: tensors found in tuples, dicts and dataclasses, and put back there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import fields, is_dataclass, replace
from inspect import Parameter, signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from walkback.errors import AnatomyError, InputError

# what a network that returns a dict calls its answer
ANSWERS = ("logits", "out", "output", "outputs", "pred", "preds", "prediction", "predictions", "y_hat")

STREAMS = ("hidden_states", "hidden", "x", "h")  # what blocks that are called by keywords call the state


def logits_of(output: Any) -> Tensor:
    """Return the logits a network returned: itself, `.logits`, ["logits"], or the first of a tuple or dataclass.

    Of a dict without "logits" it is the value of one of ANSWERS, or its only tensor.
    """
    logits: Any = output
    if isinstance(output, Mapping) and not is_dataclass(output):
        alone = [v for k, v in output.items() if k != "loss" and isinstance(v, Tensor) and v.is_floating_point()]
        named = [output[key] for key in ANSWERS if key in output]
        logits = named[0] if named else alone[0] if len(alone) == 1 else output
    elif getattr(output, "logits", None) is not None:
        logits = getattr(output, "logits")  # noqa: B009  # of any type
    elif is_dataclass(output):
        logits = first_tensor([v for v in members(output) if v is not getattr(output, "loss", None)])
    elif isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        keys = f" of {', '.join(map(repr, output))}" if isinstance(output, Mapping) else ""
        raise AnatomyError(
            "Expected the network to return logits, alone, first in a tuple, or in a dict as one of "
            f"{', '.join(ANSWERS)}, but got {type(output).__name__}{keys}."
        )
    return logits


def members(output: Any) -> Sequence[Any]:
    """Return what a block or network returned as a sequence: of a tuple, a dataclass or a dict its values, in order."""
    if isinstance(output, Tensor):
        return (output,)
    if isinstance(output, (tuple, list)):
        return output
    if is_dataclass(output):
        return [getattr(output, field.name) for field in fields(output)]
    return list(output.values()) if isinstance(output, Mapping) else (output,)


def first_tensor(values: Sequence[Any]) -> Tensor | None:
    """Return the first floating point tensor among what a module was given, or returned."""
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


def stream_of(block: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return what a block receives as the stream: its first tensor, or the keyword its forward takes first.

    Where it is handed a dict, a dataclass or a tuple alone, the first tensor in there, rather one with a gradient.
    """
    wide = [t for t in args if isinstance(t, Tensor) and t.ndim > 1]  # a time or a level of noise is a number each
    if (found := first_tensor(wide) if first_tensor(wide) is not None else first_tensor(args)) is not None:
        return found
    if args and is_held(args[0]):
        inside = [v for v in members(args[0]) if isinstance(v, Tensor) and v.is_floating_point()]
        return next((v for v in inside if v.requires_grad), first_tensor(inside))
    first = next(iter(signature(block.forward).parameters), "")
    named = [kwargs[name] for name in STREAMS if isinstance(kwargs.get(name), Tensor)]
    return first_tensor((*named, kwargs.get(first), *kwargs.values()))


def is_held(value: Any) -> bool:
    """Return whether a value that a block is handed may hold the stream: a dict, a dataclass or a tuple."""
    return isinstance(value, (Mapping, tuple)) or (is_dataclass(value) and not isinstance(value, type))


def handed_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that a block is handed, alone or held by a dict, a dataclass or a tuple."""
    values = [*args, *kwargs.values()]
    return [t for v in values for t in (members(v) if is_held(v) else (v,)) if isinstance(t, Tensor)]


def argument(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Return what a module was called with for one of its arguments, by place or by name; None where it was not."""
    names = list(signature(module.forward).parameters)
    at = names.index(name) if name in names else len(args)
    return args[at] if at < len(args) else kwargs.get(name)


def fragile(tensor: Tensor, own: Iterable[Tensor]) -> bool:
    """Return whether a tensor must not be written: it is, or views, what the network keeps (`own`), or overlaps.

    >>> net = nn.Linear(2, 3)
    >>> fragile(net.weight[:1], net.parameters()), fragile(net.weight + 0, net.parameters())
    (True, False)
    """
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape)):
        return True
    ours = {t.untyped_storage().data_ptr() for t in inner(tensor)}
    plain = (Tensor, nn.Parameter)  # which hold their values themselves: most do, and there are many
    for keeps in own:
        for t in (keeps,) if type(keeps) in plain else inner(keeps):
            if t.layout is torch.strided and not t.is_meta and t.untyped_storage().data_ptr() in ours:
                return True
    return False


def inner(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors that hold the values of a tensor: of a distributed one what this process has."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    held = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [part for one in held if isinstance(one, Tensor) for part in inner(one)]


def swapped(output: Any, made: Tensor, changed: Tensor) -> Any:
    """Return what a block returned, with `changed` in the place of `made`."""
    if isinstance(output, Tensor):
        return changed
    if is_dataclass(output):
        return replace(
            cast(Any, output), **{f.name: changed for f in fields(output) if getattr(output, f.name) is made}
        )
    if isinstance(output, Mapping):
        swapped = copy(output)
        swapped.update({key: changed for key, value in output.items() if value is made})  # type: ignore[attr-defined]
        return swapped
    make: Any = getattr(output, "_make", type(output))
    return make(changed if v is made else v for v in cast(Sequence[Any], output))


def several(output: Any) -> str | None:
    """Return the shapes of what a block returned, where it is more than one floating point tensor."""
    if isinstance(output, Tensor):
        return None
    keys = list(output) if isinstance(output, Mapping) else None
    if is_dataclass(output):  # of transformers' outputs, which are both, the values are those of the fields
        keys = [field.name for field in fields(output)]
    found = [(i, v) for i, v in enumerate(members(output)) if isinstance(v, Tensor) and v.is_floating_point()]
    if len(found) < 2:
        return None
    return ", ".join(f"{keys[i]!r} {tuple(v.shape)}" if keys else str(tuple(v.shape)) for i, v in found)


def return_hidden(model: nn.Module) -> str | None:
    """Return how a network's forward takes `return_hidden`: "required", "optional" or None."""
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            f"Expected a network that runs in Python, but got a {type(model).__name__} of TorchScript, inside which no "
            "block can be looked at. Measure the nn.Module that it was made from."
        )
    try:
        parameter = signature(model.forward).parameters.get("return_hidden")
    except (TypeError, ValueError):  # compiled code has none
        return None
    if parameter is None:
        return None
    return "required" if parameter.default is Parameter.empty else "optional"


def hidden_of(output: Any) -> Sequence[Tensor] | None:
    """Return the states in what a network returned as (logits, states), detached; None where there are none."""
    if isinstance(output, (tuple, list)) and len(output) == 2 and isinstance(output[1], (tuple, list)):
        hidden = output[1]
        if hidden and all(isinstance(h, Tensor) for h in hidden):
            return [h.detach() for h in hidden]
    return None


def named_modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module of a network with its path, each once, by torch's own book-keeping.

    A class may override `modules`, `children` or `named_parameters` to hide a part of itself from an optimiser; what is
    protected, looked up or copied must not depend on that.

    >>> class Hiding(nn.Sequential):
    ...     def named_modules(self, *args, **kwargs):
    ...         return iter(())
    >>> [path for path, _ in named_modules_of(Hiding(nn.Linear(2, 2), nn.ReLU()))]
    ['', '0', '1']
    """
    seen: set[int] = set()
    todo: list[tuple[str, nn.Module]] = [("", model)]
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        todo += [(f"{path}.{name}" if path else name, child) for name, child in reversed(children_of(module))]


def modules_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield every module of a network once, whatever its class overrides; see `named_modules_of`."""
    return (module for _, module in named_modules_of(model))


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the registered modules of a module by name, each once, whatever its class overrides."""
    first = {id(child): (name, child) for name, child in reversed(module._modules.items()) if child is not None}
    return list(reversed(first.values()))


def parameters_of(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield every registered parameter once, whatever its class overrides.

    >>> class Hiding(nn.Linear):
    ...     def parameters(self, recurse=True):
    ...         return iter(())
    >>> len(list(parameters_of(Hiding(2, 2))))
    2
    """
    return iter(named_parameters_of(model).values())


def named_parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return every registered parameter by its first name, whatever its class overrides."""
    return _named(model, "_parameters")


def buffers_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield every buffer once, whatever its class overrides."""
    return iter(named_buffers_of(model).values())


def named_buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Return every buffer by its first name, whatever its class overrides."""
    return _named(model, "_buffers")


def _named(model: nn.Module, book: str) -> dict[str, Any]:
    first: dict[int, tuple[str, Tensor]] = {}
    for path, module in named_modules_of(model):
        for name, tensor in getattr(module, book).items():
            if tensor is not None:
                first.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    return dict(first.values())


def places(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every place that holds a parameter or a buffer, by one name: tied weights are in several.

    >>> shared = nn.Linear(2, 2, bias=False)
    >>> [name for name, _ in places(nn.ModuleDict({"a": shared, "b": shared}))]
    ['a.weight']
    """
    for path, module in named_modules_of(model):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


def refuse_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise InputError where parameters or buffers are lazy, or parameters can't carry a gradient or have no values.

    Some of them on "meta" may be offloaded, and there when the network runs; not all of its parameters.
    """
    for name, tensor in weights.items():
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                f"Expected weights that are initialised, but {name} is lazy. Run the network once before measuring it."
            )
        if tensor.is_inference() and isinstance(tensor, nn.Parameter):
            raise InputError(
                f"Expected weights that can carry gradients, but {name} was made under torch.inference_mode(). "
                "Build or load the model outside it."
            )
    parameters = {name: tensor for name, tensor in weights.items() if isinstance(tensor, nn.Parameter)}
    if parameters and all(tensor.is_meta for tensor in parameters.values()):
        raise InputError(
            f'Expected weights with values, but all {len(parameters)} parameters are on the device "meta", which holds '
            'shapes only. Load them: model.to_empty(device="cpu"), then model.load_state_dict(...).'
        )


def no_inference(tensor: Tensor) -> Tensor:
    """Return the tensor, as a copy where it was made under inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor


def random_state(device: torch.device | None) -> Tensor:
    """Return the state of the generators a forward pass can draw from; what eval mode switches off leaves it alone."""
    if device is None or device.type not in ("cuda", "mps"):
        return torch.get_rng_state()
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.mps.get_rng_state()
    return torch.cat([torch.get_rng_state(), own.cpu()])


def largest(x: Tensor) -> float:
    """Return the largest absolute value, NaN aside."""
    return float(x.abs().nan_to_num().max())


NO_FLOAT64 = {"mps"}  # types of devices without it


def has_float64(device: torch.device) -> bool:
    """Return whether a device knows float64."""
    return device.type not in NO_FLOAT64


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating point type of a device."""
    return torch.float64 if has_float64(device) else torch.float32


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in the widest floating point type of its device."""
    return tensor.to(widest(tensor.device))


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn a user's autocast off inside: backward passes and statistics run in the dtypes they ask for."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
