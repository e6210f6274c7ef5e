"""Where things stand in this checkout, so that no test counts the folders above it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
HELPERS = TESTS / "helpers"
# Every folder with modules of the tests: a spec names them ("test_training:tiny") and other processes import them.
FOLDERS = sorted({str(path.parent) for path in TESTS.rglob("*.py")})
