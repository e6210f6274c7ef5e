"""The pitfalls as a plugin of flake8: WB01 is P01. It needs neither torch nor flake8 to be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from walkback.lint import ParsedSource, ignored, look
from walkback.pitfalls import DETECTORS
from walkback.version import __version__


class Plugin:
    r"""What flake8 calls for every file: its tree and lines in, (line, column, message, type) out.

    >>> text = "import torch\nprint(torch.ones(4, 3).norm(-1))\n"
    >>> [(line, said[:4]) for line, _, said, _ in Plugin(ast.parse(text), "evaluate.py", text.splitlines(True)).run()]
    [(2, 'WB01')]
    """

    name = "walkback"
    version = __version__

    def __init__(self, tree: ast.Module, filename: str = "", lines: Sequence[str] = ()) -> None:
        self._source = ParsedSource(Path(filename), tree, ignored("".join(lines)))

    def run(self) -> Iterator[tuple[int, int, str, type[Any]]]:
        """Yield every finding of the file."""
        for finding in sorted(look(self._source, DETECTORS), key=lambda f: (f.line, f.code)):
            yield (
                finding.line,
                0,
                f"WB{finding.code[1:]} {finding.why} (fix: {finding.fix}; {finding.more})",
                type(self),
            )
