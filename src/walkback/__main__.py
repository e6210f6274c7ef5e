"""`python -m walkback`, and the command `walkback`."""

import signal
import sys
from typing import Any


class Interrupt:
    """What Ctrl-C does: KeyboardInterrupt, as without it; `heard` stays, since imports may swallow the exception."""

    heard = False

    def __call__(self, number: int, frame: Any) -> None:
        self.heard = True
        raise KeyboardInterrupt


def main() -> None:
    """Run the command line; Ctrl-C is one line from the first moment on, while everything else is still imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, Interrupt())
    try:
        from walkback.cli import main as run

        run()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
