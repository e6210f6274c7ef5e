"""The exception family. Every error says what was expected, what arrived, and what to do.

WalkbackError
├── InputError     batches, labels, accuracies, thresholds: what the user handed in
├── AnatomyError   the network's stem, blocks or readout can't be found or read
├── CreditError    the credit signal does not belong to this pass
└── FormatError    a file is missing, damaged or of another version

What the user handed in is quoted by `shown`: one line, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LONGEST = 4000  # characters of a message


class WalkbackError(Exception):
    """Base of every error walkback raises on purpose.

    >>> import walkback as wb
    >>> issubclass(wb.InputError, wb.WalkbackError)
    True
    """

    def __str__(self) -> str:
        """Return what is wrong, with control codes of quoted files written out; a very long text without its middle."""
        text = visible(super().__str__())
        return text if len(text) <= LONGEST else f"{text[: LONGEST * 3 // 4]} … {text[-LONGEST // 5 :]}"


class InputError(WalkbackError, ValueError):
    """What the user handed in can't be measured: batches, labels, accuracies, thresholds."""


class AnatomyError(WalkbackError, ValueError):
    """The residual stream of the network can't be found or read."""


class CreditError(WalkbackError, ValueError):
    """The credit signal has the wrong shape, length or origin."""


class FormatError(WalkbackError, ValueError):
    """A file is missing, damaged, or of a version this release does not read."""


WITH_TORCH = ("torch", "safetensors", "jaxtyping")  # what an installation without torch lacks
TORCH_MISSING = (
    "Expected torch to be installed, which this measures with, and what goes with it: "
    f"pip install {' '.join(WITH_TORCH)}."
)


def shown(value: object, width: int = 80) -> str:
    """Return a value as a message quotes it: its `repr` on one line, cut to `width` characters. Never raises.

    Tensors and arrays are told by type, shape and dtype, in lists and dicts too; an exception by what it says.

    >>> shown("dfa"), shown([0.5, None]), shown(range(3))
    ("'dfa'", '[0.5, None]', 'range(0, 3)')
    >>> shown(list(range(10**6)), width=20)
    '[0, 1, 2, 3, 4, 5, …'
    """
    try:
        return cut(_quoted(value, width), width)
    except Exception:  # a repr is the user's code, and may do anything
        return cut(f"<{type(value).__name__}, which can't be printed>", width)


def cut(text: str, width: int = 80) -> str:
    r"""Return text on one line of at most `width` characters.

    >>> cut("one line\n  and more of it", 14)
    'one line and …'
    """
    text = " ".join(line.strip() for line in text.splitlines())
    return text if len(text) <= width else f"{text[: width - 1]}…"


# What moves a terminal's cursor, colours it or turns its text around; line ends and tabs stay.
_CONTROL = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if n not in (9, 10)}
_CONTROL |= {n: f"\\u{n:04x}" for n in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)}


def visible(text: str) -> str:
    r"""Return text with every control code written out, so that a name from a file can't command a terminal.

    >>> print(visible("red \x1b[31m"))
    red \x1b[31m
    """
    return text.translate(_CONTROL)


def _quoted(value: Any, room: int) -> str:
    """Return the repr of a value, in full where it fits into `room`, and somewhat longer than that otherwise."""
    if room <= 0:
        return "…"
    if isinstance(value, BaseException):
        return str(value)
    if isinstance(value, (str, bytes)):
        return repr(value[: room + 1])  # with its quotes it is too long if it was cut, and is cut again
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and hasattr(value, "dtype"):
        return f"{type(value).__name__} of shape {tuple(shape)}, {value.dtype}"
    if type(value) in (list, tuple):
        start, end = ("[", "]") if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
        return _joined(start, end, ((v,) for v in value), room)
    if isinstance(value, dict):
        start, end = ("{", "}") if type(value) is dict else (f"{type(value).__name__}({{", "})")
        return _joined(start, end, value.items(), room)
    return repr(value)


def _joined(start: str, end: str, items: Iterable[tuple[Any, ...]], room: int) -> str:
    """Return items between brackets, as many as fit into `room` and one more; a list of millions is not walked."""
    text = start
    for i, item in enumerate(items):
        if len(text) > room:
            return text
        text += ", " if i else ""
        for j, part in enumerate(item):
            text += ": " if j else ""
            text += _quoted(part, room - len(text))
    return text + end
