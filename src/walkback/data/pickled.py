"""Arrays out of a pickle, without running it.

CIFAR's "python version" is pickled, and a pickle is a program. This reader lets it build dicts, lists, tuples,
strings, numbers and plain numeric arrays. Every name it asks for is answered by a stand-in of ours, never by the
thing itself (also not by NumPy's: a crafted dtype can make NumPy take bytes for pointers); any other name is refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from walkback.errors import FormatError, shown
from walkback.files import LARGEST, read_file

_NUMERIC = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


def read_arrays(path: Path) -> Any:
    """Return what a pickled file holds: dicts, lists, strings (bytes where Python 2 wrote them), numbers and arrays."""
    try:
        data = read_file(path, 4 * LARGEST)
        _check_memo(data)
        return _plain(_Unpickler(io.BytesIO(data), encoding="bytes").load(), {})
    except _Refused as refusal:
        raise FormatError(
            f"{path}: expected a pickle of arrays, lists and dicts, but it asks for {refusal}, which could run code. "
            "It was refused. Get the data set from its official address."
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise FormatError(
            f"{path}: expected a pickle of arrays, lists and dicts, but it is damaged "
            f"({type(error).__name__}: {error}). Get a fresh copy of the data set."
        ) from None


def _check_memo(data: bytes) -> None:
    """Refuse a number of a remembered object beyond all there can be: as many places would be made for it."""
    for code, number, _ in pickletools.genops(data):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and number is not None and number > len(data):
            raise ValueError(f"object number {number} in {len(data)} bytes")


class _Refused(Exception):
    """The pickle wants something that data does not need."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): lambda kind, shape, code: _Array(),
            ("numpy._core.multiarray", "_reconstruct"): lambda kind, shape, code: _Array(),
            ("numpy", "ndarray"): _no_call,  # only named, as the first argument of _reconstruct
            ("numpy", "dtype"): lambda code, *flags: _Dtype(code),
            ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes for Python 2
        }
        if (module, name) not in allowed:
            raise _Refused(f"{module}.{name}")
        return _Name(allowed[module, name])

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("an object outside of the file")


class _Name:
    """Stands for an allowed name. Nothing in a pickle can change it."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("a change of a class or function")


def _no_call(*args: Any) -> Any:
    raise _Refused("a call of numpy.ndarray")


def _latin1(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise _Refused(f"the codec {shown(encoding)}")
    return text.encode("latin1")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _Dtype:
    """A numeric dtype: its code and, from the state, its byte order."""

    def __init__(self, code: Any) -> None:
        self.code, self.order = _text(code), "="
        if self.code not in _NUMERIC:
            raise _Refused(f"an array of dtype {shown(self.code)}")

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        self.order = _text(order)
        if self.order not in ("|", "<", ">", "=") or rest[:3] != [None, None, None]:
            raise _Refused("a structured dtype")


class _Array:
    """An array in the making: NumPy pickles an empty one and then its state."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise _Refused("an array of objects")
        kind = np.dtype(dtype.order.replace("|", "=") + dtype.code)
        if not all(type(n) is int and n >= 0 for n in shape) or prod(shape) * kind.itemsize != len(data):
            raise ValueError(f"an array of shape {shape} {kind} in {len(data)} bytes")
        self.value = np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """Put arrays in for stand-ins, through lists, tuples and dicts; what stands in many places is looked at once."""
    if id(value) not in seen:
        seen[id(value)] = _looked_at(value, seen)
    return seen[id(value)]


def _looked_at(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, _Array):
        if value.value is None:
            raise ValueError("an array without contents")
        return value.value
    if isinstance(value, dict):
        return {_plain(k, seen): _plain(v, seen) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v, seen) for v in value)
    if isinstance(value, (_Name, _Dtype)):
        raise _Refused("a class or function as a value")
    return value
