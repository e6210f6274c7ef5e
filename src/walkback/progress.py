"""A progress bar with time left, on standard error, only for what takes over two seconds in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None, patience: float = 2.0) -> Iterator[T]:
    """Yield `items`; once `patience` seconds have passed, show how far we are.

    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    if not sys.stderr.isatty():
        yield from items
        return
    start, bar, task = time.monotonic(), None, None
    try:
        for done, item in enumerate(items):
            if bar is None and time.monotonic() - start > patience:
                bar, task = _bar(what, total, done)
            if bar is not None and task is not None:
                bar.update(task, completed=done)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str, total: int | None, done: int):
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total, completed=done)
    bar.start()
    return bar, task
