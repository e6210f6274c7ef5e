"""The README and the docs run as printed, and show what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def test_readme_session_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile("\n".join(blocks("README.md", "python")), "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip().splitlines()
    shown = blocks("README.md", "text")[0].strip().splitlines()
    # Last digits may differ between machines; the verdict, the layout and the words may not.
    assert printed[-1] == shown[-1]
    assert len(printed) == len(shown)
    numbers = r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?[x%]?|\s+|-{2,}"
    assert [re.sub(numbers, "", line) for line in printed] == [re.sub(numbers, "", line) for line in shown]


@pytest.mark.parametrize("page", ["docs/custom-networks.md", "docs/rules.md"])
def test_docs_run_as_printed(page: str) -> None:
    code = blocks(page, "python")
    assert code
    exec(compile("\n".join(code), page, "exec"), {"__name__": "docs"})


def test_readme_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert "@@" not in text
