"""Every run of some modules in a forward pass, also where code calls `layer.forward(h)`, past all hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch import nn

# module, args, kwargs -> (args, kwargs) to run with instead, or None
Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
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
            listen(stack, module, before, after, by_forward=True)
        yield


def listen(
    stack: ExitStack, module: nn.Module, before: Before | None, after: After | None, by_forward: bool = False
) -> None:
    """Call `before` and `after` around every run of a module for as long as `stack` lasts.

    By hooks alone, or with `by_forward` also where its `forward` is called.
    """
    hooked: list[None] = []  # runs that came through hooks, and wait for their forward

    def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if by_forward:
            hooked.append(None)
        return None if before is None else before(module, args, kwargs)

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return None if after is None else after(module, output)

    # First of all hooks: `fully_shard` has one that hands a block a copy of the stream.
    stack.callback(module.register_forward_pre_hook(entering, with_kwargs=True, prepend=True).remove)
    stack.callback(module.register_forward_hook(leaving).remove)
    if not by_forward:
        return
    own = vars(module)
    there, forward = own.get("forward"), module.forward

    @wraps(forward)
    def instead(*args: Any, **kwargs: Any) -> Any:
        if hooked:
            hooked.pop()
            return forward(*args, **kwargs)
        given = None if before is None else before(module, args, kwargs)
        args, kwargs = (args, kwargs) if given is None else given
        output = forward(*args, **kwargs)
        changed = None if after is None else after(module, output)
        return output if changed is None else changed

    def put_back() -> None:
        if there is None:
            own.pop("forward", None)
        else:
            own["forward"] = there

    own["forward"] = instead
    stack.callback(put_back)
