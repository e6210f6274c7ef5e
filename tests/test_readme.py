"""The README and the docs run as printed, and show what they print."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from walkback import cli
from walkback.data import EMBEDDED, SOURCES, load
from walkback.data.teacher import LINEAR_SHARE, SPREAD

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


def test_readme_session_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile("\n".join(blocks("README.md", "python")), "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip().splitlines()
    shown = blocks("README.md", "text")[0].strip().splitlines()
    # Last digits may differ between machines; the verdict, the layout and the words may not.
    assert printed[-1] == shown[-1]
    assert len(printed) == len(shown)
    numbers = r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?[x%]?|\s+|-{2,}"
    assert [re.sub(numbers, "", line) for line in printed] == [re.sub(numbers, "", line) for line in shown]


@pytest.mark.parametrize("page", ["docs/custom-networks.md", "docs/rules.md", "docs/intrinsic.md"])
def test_docs_run_as_printed(page: str) -> None:
    code = blocks(page, "python")
    assert code
    exec(compile("\n".join(code), page, "exec"), {"__name__": "docs"})


def test_the_page_on_data_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is written to a file of the name it gives, and found there by name, from Python and the shell."""
    module, *rest = blocks("docs/data.md", "python")
    assert module.startswith("# mydata.py\n")
    (tmp_path / "mydata.py").write_text(module, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        exec(compile("\n".join(["import torch", *rest]), "docs/data.md", "exec"), {"__name__": "docs"})
        (line,) = re.findall(r"^\$ walkback (train --data mydata:rings .*)$", page("docs/data.md"), re.MULTILINE)
        assert cli.run(line.split()) == 0
    finally:
        sys.modules.pop("mydata", None)
    assert len(list(tmp_path.glob("runs/*"))) == 1, "both are the same run, which was trained once"


def test_the_page_on_data_says_what_the_code_does() -> None:
    text = page("docs/data.md")
    for name, source in SOURCES.items():
        row = f"| `{name}` | {source.train_size:,} + {source.test_size:,} | {'×'.join(map(str, source.shape))}, uint8 "
        assert f"{row}| {source.classes} |" in text
        mean, std = (", ".join(f"{v:.4f}" for v in values) for values in (source.mean, source.std))
        assert f"| `{name}` | {mean} | {std} |" in text
        for layout in source.layouts:
            for file in (*layout.folders, *layout.train, *layout.test):
                left_out = re.fullmatch(r"data_batch_[234](\.bin)?", file)  # the page writes 1 … 5
                assert left_out or f"`{file.removesuffix('.gz')}`" in text, file
        for how in source.how_to_get:
            assert f"\n$ {how.removeprefix('or: ').partition('    ')[0]}" in text
        for place in (*source.system, *source.hub):
            assert f"`{place}`" in text
    for name in EMBEDDED:
        data = load(name)
        sizes = f"{len(data.train):,} + {len(data.test):,} | {data.input_shape[0]} numbers | {data.classes} |"
        assert f"| `{name}` | {sizes}" in text
    assert f"x = {SPREAD:.0f}z" in text
    assert f"√{LINEAR_SHARE} · ⟨w, z⟩ + √{1 - LINEAR_SHARE:.1f} · zᵀAz" in text


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page(name)):
        assert link.startswith("https://") or ((ROOT / name).parent / link).exists(), link


def test_readme_links_the_docs() -> None:
    for name in ("protocol", "custom-networks", "rules", "data"):
        assert f"(docs/{name}.md)" in page("README.md")


def test_readme_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert "@@" not in text
