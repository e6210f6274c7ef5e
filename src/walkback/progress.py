"""Progress on standard error: bars in a terminal, and one line per epoch of training elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from walkback.errors import visible

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

# (epochs done, whole or not, and what the last whole one measured, given at its end)
Show = Callable[[float, str], None]

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_above: ContextVar[Console | None] = ContextVar("above", default=None)  # of a bar: it prints lines above itself


@contextmanager
def quietly(really: bool = True) -> Iterator[None]:
    """Let nothing of this module show anything inside the `with` block."""
    token, above = _quiet.set(_quiet.get() or really), _above.set(None if really else _above.get())
    try:
        yield
    finally:
        _above.reset(above)
        _quiet.reset(token)


@contextmanager
def stopping_quietly() -> Iterator[None]:
    """Have Ctrl-C inside the `with` block end a script of the user's with one line, unless the script catches it."""
    try:
        yield
    except KeyboardInterrupt as error:
        stopped, before = error, sys.excepthook

        def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if error is stopped:
                print("stopped", file=sys.stderr)
            else:
                before(kind, error, trace)

        sys.excepthook = told
        raise


def say(text: str, alarm: bool = False) -> None:
    """Print one line on standard error at once, above the bar of `epochs`; an alarm is red in a terminal of colours."""
    from rich.console import Console

    console = _above.get()
    if console is None:
        if _quiet.get():
            return
        console = Console(file=sys.stderr)
    text = visible(text)
    text = text.replace("‖", "|") if console.options.ascii_only else text
    console.print(text, style="bold red" if alarm else None, highlight=False, markup=False, soft_wrap=True)


def track(items: Iterable[T], what: str, total: int | None = None, patience: float = 2.0) -> Iterator[T]:
    """Yield `items`; once `patience` seconds have passed in a terminal, show how far we are and the time left."""
    if _quiet.get() or not sys.stderr.isatty():
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


@contextmanager
def epochs(what: str, done: int, total: int, numbers: str) -> Iterator[Show]:
    """Give a function that shows how far training is: `show(2.5, "")` within an epoch, `show(3, "acc 0.9")` at its end.

    `done` epochs were finished before this process, and `numbers` were measured last.
    """
    start = time.monotonic()

    def pace(position: float) -> float:
        """Return the seconds per epoch, of this process alone."""
        return (time.monotonic() - start) / (position - done)

    def line(position: float, numbers: str) -> None:
        if numbers:
            each = pace(position)
            left = f"{each:.1f} s/epoch, {each * (total - position) / 60:.0f} min left"
            print(visible(f"{what}  epoch {position:.0f}/{total}  {numbers}  {left}"), file=sys.stderr, flush=True)

    if _quiet.get():
        yield lambda position, numbers: None
    elif not sys.stderr.isatty():
        yield line
    else:
        from rich.console import Console

        console = Console(file=sys.stderr)
        if not console.is_interactive:  # TERM=dumb can't move its cursor
            yield line
            return
        with _epoch_bar(console, what, done, total, numbers, pace) as show, quietly():  # no bar paints over another
            token = _above.set(console)
            try:
                yield show
            finally:
                _above.reset(token)


@contextmanager
def _epoch_bar(
    console: Console, what: str, done: int, total: int, numbers: str, pace: Callable[[float], float]
) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    told = Column(no_wrap=True, overflow="ellipsis")
    columns = BarColumn(bar_width=None), TextColumn("{task.description}", markup=False, table_column=told)
    to_terminal = sys.stdout.isatty()  # else it is piped, and what is printed belongs in the pipe
    # Drawn by the training loop, not by a thread that would compete with it.
    bar = Progress(*columns, console=console, auto_refresh=False, redirect_stdout=to_terminal, expand=True)
    due = 0.0

    def text(position: float) -> str:
        left = timedelta(seconds=round(pace(position) * (total - position))) if position > done else "-:--:--"
        line = f"{int(position)}/{total} epochs  {numbers}  {left} left"
        return line.replace("‖", "|") if console.options.ascii_only else line

    def show(position: float, new: str) -> None:
        nonlocal numbers, due
        numbers, now = new or numbers, time.monotonic()
        if new or now >= due:
            bar.update(task, completed=position, description=text(position))
        if now >= due:
            bar.refresh()
            due = now + max(0.25, 400 * (time.monotonic() - now))  # at most 1/400 of the time is spent on drawing

    console.print(visible(what), highlight=False, markup=False, soft_wrap=True)
    task = bar.add_task(text(done), total=total, completed=done)
    with bar:
        console.show_cursor()  # rich hides it, and a run that is killed could not bring it back
        yield show
