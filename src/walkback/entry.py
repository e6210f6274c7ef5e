"""`module:function` on the command line and in specs: import it, call it, and say clearly what went wrong."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from walkback.errors import InputError, WalkbackError, cut, shown


def is_entry(text: object) -> bool:
    """Does it look like `package.module:function`?

    >>> is_entry("mymodels:trained"), is_entry("runs/abc")
    (True, False)
    """
    return isinstance(text, str) and re.fullmatch(r"[\w.]+:[\w.]+", text) is not None


def call_entry(text: str, /, *args: Any, **kwargs: Any) -> Any:
    """Import `module:function` (the current folder is searched first) and call it."""
    if not is_entry(text):
        raise InputError(f"Expected an entry like mymodule:function, but got {shown(text)}.")
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = import_module(module_name)
    except (Exception, SystemExit) as error:  # a script without a main guard may end the process
        what = f"{type(error).__name__}: {shown(error, 300)}"
        raise InputError(f"Expected to import {cut(module_name)}, but: {what}.") from error
    for step in name.split("."):
        if not hasattr(value, step):
            raise InputError(f"Expected {module_name} to have {shown(name)}, but it has not.")
        value = getattr(value, step)
    if not callable(value):
        raise InputError(f"Expected {text} to be a function, but it is a {type(value).__name__}.")
    try:
        return value(*args, **kwargs)
    except WalkbackError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {shown(error, 300)}"
        raise InputError(f"Expected {text} to run, but it raised {what}.") from error
