#!/usr/bin/env python3
"""The pre-commit hook of `walkback lint`: run from a checkout, by the standard library alone. Nothing is installed."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  # whatever python3 is
    sys.exit(f"walkback lint needs Python 3.11 or newer, and python3 is {sys.version_info[0]}.{sys.version_info[1]}.")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from walkback.errors import WalkbackError
from walkback.lint import lint

if __name__ == "__main__":
    try:
        found = lint(*sys.argv[1:]) if sys.argv[1:] else None
    except WalkbackError as error:
        sys.exit(f"error: {error}")
    if found is not None and (found.findings or found.problems):
        print("\n".join(map(str, (found, *found.problems))))
        sys.exit(1)
