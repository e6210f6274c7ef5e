"""`python -m walkback`, and the command `walkback`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is one line from the first moment on, while everything else is still imported."""
    try:
        from walkback.cli import main as run

        run()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
