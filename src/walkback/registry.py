"""Things by name: a folder of files is their table, `module:function` is a user's own, and options are checked."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from walkback.errors import InputError, WalkbackError, cut, shown

# -- a folder is a table -------------------------------------------------------------------------------------------


def modules_of(package: str, called: str = "") -> Iterator[ModuleType]:
    """Import the files of a package's folder whose names begin as the pattern `called` says, and yield them sorted."""
    for found in iter_modules(import_module(package).__path__):
        if re.match(called, found.name):
            yield import_module(f"{package}.{found.name}")


def gathered(package: str, table: str) -> dict[str, Any]:
    """Return the union of the dicts called `table` in the files of a package.

    A file's `ORDER` says where its part stands; a file without one stands at the end.

    >>> list(gathered("walkback.rules", "RULES"))[:3]
    ['bp', 'fa', 'dfa']
    """
    entries: dict[str, Any] = {}
    for module in sorted(modules_of(package), key=lambda module: getattr(module, "ORDER", 99)):
        part = getattr(module, table, {})
        if twice := entries.keys() & part.keys():
            raise InputError(f"Expected one file of {package} for each name, but {twice.pop()} stands in two.")
        entries |= part
    return entries


def names_in(package: str, table: str) -> list[str]:
    """Return the names of `gathered` from the text of the files: importing them would load torch.

    >>> names_in("walkback.rules", "RULES")[:3]
    ['bp', 'fa', 'dfa']
    """
    parts = []
    for text in _texts(package):
        if part := re.search(rf"^{table} = {{(.*?)}}", text, re.MULTILINE | re.DOTALL):
            order = re.search(r"^ORDER = (\d+)", text, re.MULTILINE)
            parts.append((int(order[1]) if order else 99, re.findall(r'"([\w-]+)":', part[1])))
    return [name for _, names in sorted(parts, key=lambda part: part[0]) for name in names]


def defaults_in(package: str, table: str) -> dict[str, dict[str, Any]]:
    """Return the options of every class in `gathered` with their defaults, read from the text of the files.

    >>> defaults_in("walkback.rules", "RULES")["ep"]
    {'beta': 0.5, 'steps': 10, 'step_size': 0.2}
    """
    trees = [ast.parse(text) for text in _texts(package)]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    assigned = [n for t in trees for n in t.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == table]
    tables = [n.value for n in assigned if isinstance(n.value, ast.Dict)]
    made_by = {ast.unparse(k): ast.unparse(v) for one in tables for k, v in zip(one.keys, one.values) if k}
    return {name: _init_defaults(classes, made_by[repr(name)]) for name in names_in(package, table)}


def _init_defaults(classes: Mapping[str, ast.ClassDef], name: str) -> dict[str, Any]:
    """Return the defaults of a class's own `__init__`, or of the first base that has one."""
    if name not in classes:
        return {}
    for node in classes[name].body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            with_default = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            return {a.arg: ast.literal_eval(d) for a, d in zip(with_default, node.args.defaults)}
    return next(filter(None, (_init_defaults(classes, ast.unparse(base)) for base in classes[name].bases)), {})


def _texts(package: str) -> Iterator[str]:
    """Yield the files of a package's folder as text, sorted by name."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        yield from (path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("[!_]*.py")))


def closest(word: str, known: Iterable[str]) -> str:
    """Return a hint for a typo, " Did you mean 'primary'?", with a space before it; empty when nothing is close."""
    found = get_close_matches(word, list(known), 1)
    return f" Did you mean {found[0]!r}?" if found else ""


def known_name(what: str, name: object, known: Iterable[str]) -> str:
    """Return a name that is known, and refuse others with the closest one.

    >>> known_name("net", "resmpl", ["resmlp", "student"])
    Traceback (most recent call last):
    walkback.errors.InputError: Expected net to be one of resmlp, student or module:function, but got 'resmpl'. Did ...
    """
    listed = list(known)
    if not isinstance(name, str) or name not in listed:
        expected = f"Expected {what} to be one of {', '.join(listed)} or module:function, but got {shown(name)}."
        raise InputError(f"{expected}{closest(str(name), listed)}")
    return name


# -- a user's own: module:function ---------------------------------------------------------------------------------


def is_entry(text: object) -> bool:
    """Return whether it looks like `package.module:function`."""
    return isinstance(text, str) and re.fullmatch(r"[\w.]+:[\w.]+", text) is not None


def modules_named(*texts: object) -> frozenset[str]:
    """Return the modules of those texts that are entries.

    >>> sorted(modules_named("resmlp", "mine.nets:small", "mine.rules:own"))
    ['mine.nets', 'mine.rules']
    """
    return frozenset(str(text).partition(":")[0] for text in texts if is_entry(text))


def check_trusted(text: object, trust: Iterable[str], where: Path) -> None:
    """Refuse an entry that a file names, unless the user trusts its module or a package around it.

    >>> check_trusted("mine.nets:small", {"mine"}, Path("run"))
    >>> check_trusted("os:system", {"mine"}, Path("run"))
    Traceback (most recent call last):
    walkback.errors.InputError: run names 'os:system': it would import os and call system, with all your rights. ...
    """
    for module in modules_named(text):
        if not any(module == known or module.startswith(f"{known}.") for known in trust):
            raise InputError(
                f"{where} names {shown(text)}: it would import {cut(module)} and call "
                f"{cut(str(text).partition(':')[2])}, with all your rights. If you know the module and trust it, say "
                f"so: --trust {cut(module)}, or load_bundle(path, trust=[{shown(module)}])."
            )


def call_entry(text: str, /, *args: Any, **kwargs: Any) -> Any:
    """Import `module:function` (the current folder is searched first), call it and return what it returns."""
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


# -- options -------------------------------------------------------------------------------------------------------


def _refuse_unless(fits: Callable[[Any], bool], expected: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not fits(value):
            raise InputError(f"Expected {name} to be {expected}, but got {shown(value)}.")


def is_number(value: Any) -> bool:
    """Return whether it is a finite number; a whole one of hundreds of digits is none that a float holds."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return isfinite(float(value))
    except OverflowError:
        return False


def whole_numbers(least: int = 1, /, **values: Any) -> None:
    """Refuse what is not a whole number of at least `least`.

    >>> whole_numbers(width=0)
    Traceback (most recent call last):
    walkback.errors.InputError: Expected width to be a whole number >= 1, but got 0.
    """

    def whole(value: Any) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least

    _refuse_unless(whole, f"a whole number >= {least}", values)
    _refuse_unless(lambda value: int(value) < 2**63, "a whole number below 2**63", values)


def positive(**values: Any) -> None:
    """Refuse what is not a finite number above 0."""
    _refuse_unless(lambda v: is_number(v) and v > 0, "a finite number > 0", values)


def not_negative(**values: Any) -> None:
    """Refuse what is not a finite number of at least 0."""
    _refuse_unless(lambda v: is_number(v) and v >= 0, "a finite number >= 0", values)


def one_of(known: Iterable[str], /, **values: Any) -> None:
    """Refuse what is none of these words.

    >>> one_of(("mean", "sum"), reduction="max")
    Traceback (most recent call last):
    walkback.errors.InputError: Expected reduction to be one of mean, sum, but got 'max'.
    """
    words = list(known)
    _refuse_unless(lambda v: isinstance(v, str) and v in words, f"one of {', '.join(words)}", values)


def texts(**values: Any) -> None:
    """Refuse what is no text, but for None."""
    _refuse_unless(lambda v: v is None or isinstance(v, str), "text", values)


def true_or_false(**values: Any) -> None:
    """Refuse what is not a bool: any text, "no" too, would count as true."""
    _refuse_unless(lambda v: isinstance(v, bool), "true or false", values)


def options_of(made: Callable[..., Any]) -> list[str]:
    """Return the options of a network or rule: what its class takes, but for what the data decides.

    >>> options_of(lambda input_shape, classes, width=1: None)
    ['width']
    """
    parameters = signature(made).parameters.values()
    kinds = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    return [name for name in kinds if name not in ("input_shape", "classes")]


def known_options(what: str, name: str, made: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse an option that a network or rule does not have, and say which one was probably meant."""
    options = options_of(made)
    for key in given:
        if key not in options:
            has = f"only {', '.join(options)}" if options else "nor any other"
            raise InputError(
                f"Expected {what} that {name} knows, but: it has no {shown(key)}, {has}.{closest(key, options)}"
            )
