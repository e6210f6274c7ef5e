"""The command line: each file of this folder with a function of its own name is a verb.

Results go to standard output, everything else to standard error; there are no tracebacks.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from walkback.errors import TORCH_MISSING, WITH_TORCH, WalkbackError, visible
from walkback.registry import modules_of
from walkback.version import __version__

USAGE = 2

app = App(
    name="walkback",
    help="Which of your feedback-alignment results would you have to walk back?\n\n"
    "`diagnose` and `judge` exit with 0 (passes), 1 (walked back), 3 (undecided); 2 is a wrong call or input.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `run` says that it stopped
)

for _module in modules_of(__name__):
    if _verb := getattr(_module, _module.__name__.rpartition(".")[2], None):
        app.command(_verb)


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the `walkback` command and exit."""
    code = run(sys.argv[1:] if tokens is None else tokens)
    gc.freeze()  # what is left goes with the process: to look through it for cycles first takes a second of 1,000 runs
    sys.exit(code)


def run(tokens: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(list(tokens), exit_on_error=False, print_error=True, result_action="return_value")
        return code if isinstance(code, int) else 0
    except CycloptsError:
        return USAGE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if getattr(signal.getsignal(signal.SIGINT), "heard", False):  # an import that was cut short fails when repeated
            print("stopped", file=sys.stderr)
            return 130
        if os.environ.get("WALKBACK_TRACEBACK"):
            raise
        text = str(error) if isinstance(error, WalkbackError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name in WITH_TORCH:
            text = TORCH_MISSING
        for note in getattr(error, "__notes__", []):
            text += f" {note}"
        print(visible(f"error: {text}"), file=sys.stderr)
        if not isinstance(error, WalkbackError) or error.__cause__ is not None:
            print("Set WALKBACK_TRACEBACK=1 to see where it comes from.", file=sys.stderr)
        return USAGE
