"""`python -m walkback`, and the command `walkback`."""

import signal
import sys
from typing import Any


class Interrupt:
    """What Ctrl-C and SIGTERM do: KeyboardInterrupt; `heard` stays, since imports may swallow the exception."""

    heard = False

    def __call__(self, number: int, frame: Any) -> None:
        self.heard = True
        raise KeyboardInterrupt


def main() -> None:
    """Run the command line; Ctrl-C is one line from the first moment on, while everything else is still imported.

    SIGTERM is the same: it would end the process where it stands, with scratch files beside what it was writing.
    """
    interrupt = Interrupt()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    taken = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        from walkback.cli import main as run

        run()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    finally:
        for number in taken:  # what is done is not stopped any more: pressed twice it is one line, too
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
