"""Every run of some modules in a forward pass, also where code calls `layer.forward(h)`, past all hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch import nn

Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[nn.Module, Any], Any]  # module, what it returned -> what it returns instead, or None


@contextmanager
def overheard(modules: Iterable[nn.Module], after: After, before: Before | None = None) -> Iterator[None]:
    """Call `before` and `after` around every run of these modules inside; afterwards they are as they were.

    A module that is called runs its hooks, and ours stands behind all others: what it sees is what flows on. A module
    whose `forward` is called runs none, so while this lasts a function stands in the place of its `forward`.

    >>> import torch
    >>> net, seen = nn.Linear(2, 2), []
    >>> with overheard([net], lambda module, output: seen.append(output)):
    ...     _ = net(torch.ones(1, 2)), net.forward(torch.ones(1, 2))
    >>> len(seen), "forward" in vars(net)
    (2, False)
    """
    with ExitStack() as stack:
        for module in {id(m): m for m in modules}.values():
            _listen(stack, module, after, before)
        yield


def _listen(stack: ExitStack, module: nn.Module, after: After, before: Before | None) -> None:
    hooked: list[None] = []  # runs that came through hooks, and wait for their forward

    def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hooked.append(None)
        if before is not None:
            before(module, args, kwargs)

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return after(module, output)

    stack.callback(module.register_forward_pre_hook(entering, with_kwargs=True, prepend=True).remove)
    stack.callback(module.register_forward_hook(leaving).remove)
    own = vars(module)
    there, forward = own.get("forward"), module.forward

    @wraps(forward)
    def instead(*args: Any, **kwargs: Any) -> Any:
        if hooked:
            hooked.pop()
            return forward(*args, **kwargs)
        if before is not None:
            before(module, args, kwargs)
        output = forward(*args, **kwargs)
        changed = after(module, output)
        return output if changed is None else changed

    def put_back() -> None:
        if there is None:
            own.pop("forward", None)
        else:
            own["forward"] = there

    own["forward"] = instead
    stack.callback(put_back)
