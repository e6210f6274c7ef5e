"""`walkback lint`."""

from __future__ import annotations

from pathlib import Path

from walkback.cli.options import Flag
from walkback.cli.output import answer, warn


def lint(path: Path, *more: Path, json: Flag = False) -> int:
    """Scan evaluation scripts for pitfalls, without running them. Exit 0: nothing found, 1: findings, 2: not readable.

    Args:
        path: A .py or .ipynb file, or a folder with such files. `# walkback: ignore[P02]` on a line silences P02
            there.
        more: Further files and folders.
        json: Print the findings as JSON.
    """
    from walkback.lint import lint as linted

    found = linted(path, *more)
    answer(found, json)
    for problem in found.problems:
        warn(f"error: {problem}")
    return 2 if found.problems else 1 if found.findings else 0
