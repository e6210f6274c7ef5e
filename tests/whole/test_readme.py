"""What the README and the page on data say is so, and links lead somewhere. test_docs.py runs every block."""

from __future__ import annotations

import re

import pytest

from places import ROOT
from walkback.data import EMBEDDED, SOURCES, load
from walkback.data.teacher import LINEAR_SHARE, SPREAD


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


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


@pytest.mark.parametrize(
    "name", [p.relative_to(ROOT).as_posix() for p in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"))]
)
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
