"""What the callbacks of trainers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import signature
from typing import Any, ClassVar

from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, shown
from walkback.integrations.optional import library as library
from walkback.registry import call_entry, is_entry
from walkback.training.frozen import digest
from walkback.training.watch import Watch, planned


def part(model: nn.Module, network: str | None) -> nn.Module:
    """Return the network itself inside a module that wraps it for a trainer, by its dotted path."""
    if network is None:
        return model
    try:
        return model.get_submodule(network)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_children()) or "nothing"
        raise AnatomyError(
            f"Expected network to be the dotted path of a module inside {type(model).__name__}, which holds {names}, "
            f"but got {shown(network)}."
        ) from None


class WatchCallback:
    """A Watch as the callback of a trainer; `.watch` is there once training has started.

    The class needs no library. Its instances are of a subclass that has the library's own callback class as a base too.
    A pickle holds the settings and the state of the watch, but neither the watch nor its network.
    """

    base: ClassVar[str]  # the name of the library's callback class
    extra: ClassVar[str]  # what installs the library
    watch: Watch

    modules: ClassVar[Callable[[], tuple[str, ...]]]  # the modules that have that class

    @classmethod
    def concrete(cls) -> type:
        """Return the class of the instances, which is a subclass of the installed library's own."""
        own: Any = cls
        return type(_blank(cls, own.modules()))

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        own = cls.__dict__.get("own", cls)
        return _blank(own, own.modules())

    def __init__(
        self,
        eval_batches: Iterable[Any] | str,
        every: str | int = "epoch",
        *,
        network: str | None = None,
        stop: bool = False,
        **options: Any,
    ) -> None:
        known = [p.name for p in signature(Watch).parameters.values() if p.kind is p.KEYWORD_ONLY]
        wrong = ", ".join(name for name in options if name not in known)
        if wrong:
            raise InputError(f"Expected options to be keywords of Watch, {', '.join(known)}, but got {wrong}.")
        early = ("max_overhead", "edition", "thresholds", "log")  # what can be checked before there is a network
        planned(every, **{name: value for name, value in options.items() if name in early})
        if isinstance(eval_batches, str) and not is_entry(eval_batches):
            raise InputError(f"Expected batches, or their module:function, but got {shown(eval_batches)}.")
        self.eval_batches, self.every, self.options = eval_batches, every, options
        self.network, self.stop = network, stop
        self._state: dict[str, Any] = {}  # to go on from

    def _begin(self, model: nn.Module, steps: int, epochs: int, options: Mapping[str, Any]) -> None:
        entry = self.eval_batches
        batches = call_entry(entry) if isinstance(entry, str) else entry
        self.watch = Watch(part(model, self.network), batches, self.every, **options)
        if self._state:
            self.watch.load_state_dict(self._state)
            self._state = {}
            if epochs > self.watch.epochs:  # it was saved after the last step of an epoch, and before the epoch's end
                self.watch.epoch(epochs)
        self.watch.steps, self.watch.epochs = steps, epochs

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the watch, in types that JSON has; {} before training has started."""
        return self.watch.state_dict() if "watch" in self.__dict__ else dict(self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state that the watch goes on from when training starts."""
        self._state = dict(state_dict)

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint: two watches of one training differ in what they measure, and when."""
        settings = {"every": self.every, "network": self.network, **self.options}
        settings |= {"batches": self.eval_batches} if isinstance(self.eval_batches, str) else {}
        what = ("batches", "every", "network", "credit", "edition", "thresholds", "anatomy", "loss", "reference")
        words = [f"{name}={_word(settings[name])}" for name in what if settings.get(name) is not None]
        first = self.eval_batches[0] if isinstance(self.eval_batches, (list, tuple)) and self.eval_batches else ()
        tensors = {str(i): t for i, t in enumerate(first) if isinstance(t, Tensor)}
        return f"{type(self).__qualname__}({', '.join(words)}){digest(tensors)[:8] if tensors else ''}"

    def __getstate__(self) -> dict[str, Any]:
        return {**{k: v for k, v in self.__dict__.items() if k != "watch"}, "_state": self.state_dict()}

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self).own, type(self).sources), self.__getstate__()  # type: ignore[attr-defined]


def _word(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float)) else getattr(value, "__qualname__", type(value).__name__)


def _blank(cls: type[WatchCallback], modules: tuple[str, ...]) -> WatchCallback:
    """Return an instance of a callback without its attributes, for the libraries in these modules."""
    bases = tuple(getattr(library(name, cls.extra), cls.base) for name in modules)
    return object.__new__(_subclass(cls, bases, modules))


@cache
def _subclass(cls: type[WatchCallback], bases: tuple[type, ...], sources: tuple[str, ...]) -> type[WatchCallback]:
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, *bases), {**named, "own": cls, "sources": sources})
