"""Print what `make test-floors` installs: the lowest versions that pyproject.toml promises, or `newest`, the names."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def floors(newest: bool = False) -> list[str]:
    """Return the dependencies of the core as pip takes them: `torch==2.4`, or `torch`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [re.match(r"([\w-]+)>=([\d.]+)", one) for one in project["dependencies"]]
    assert all(found), "a dependency without a floor"
    return [match[1] if newest else f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    print("\n".join(floors("newest" in sys.argv[1:])))
