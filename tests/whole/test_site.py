"""The docs site: it builds in strict mode, has every page and public name, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import docs_site
import walkback as wb
from patience import PATIENCE
from places import ROOT


def build(out: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(out)
    assert done.returncode == 0, done.stderr
    return out


def html(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_every_page_of_docs_is_there_and_can_be_reached(site: Path) -> None:
    home = html(site, "index.html")
    for page in (ROOT / "docs").glob("**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).is_file()
        assert f'href="{name}"' in home, f"{name} is not in the navigation"
    for name in ("CHECKLIST.html", "CONTRIBUTING.html", "results/tables/primary.html", "img/terminal.svg"):
        assert (site / name).is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'>\s]+|<link\b[^>]*\bhref=["']?(?:https?:)?//[^"'>\s]+"""
    )
    for page in site.glob("**/*.html"):
        assert not loading.findall(page.read_text(encoding="utf-8")), page
    for style in site.glob("**/*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style
    for picture in site.glob("**/*.svg"):
        assert "http" not in picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", ""), picture


def test_the_search_works_from_a_file(site: Path) -> None:
    """A page on a disk may start no worker and fetch nothing: the index is a script, a frame stands for the worker."""
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index")
    for page in ("index.html", "pitfalls/02-cosine-epsilon.html"):
        (shim,) = re.findall(r'<script src="([^"]*iframe-worker[^"]*)"', html(site, page))
        assert (site / page).parent.joinpath(shim).resolve().is_file()


def test_equations_are_drawn_by_the_browser(site: Path) -> None:
    drawn = 0
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        assert 'class="arithmatex"' not in text, page
        drawn += text.count("<math ")
        for equation in re.findall(r"<math .*?</math>", text, re.DOTALL):
            assert "<merror" not in equation
            assert "\\" not in re.sub(r"<annotation.*?</annotation>", "", equation), f"{page.name}: {equation}"
    assert drawn > 30


def test_the_reference_has_every_public_name_with_its_example(site: Path) -> None:
    text = html(site, "api.html")
    for name in wb.__all__:
        home = wb._HOMES[name]
        anchor = home if name in wb._MODULES else f"{home}.{name}"
        assert f'id="{anchor}"' in text, name
    assert ">>&gt;" not in text
    assert "&gt;&gt;&gt; " in re.sub(r"</?span[^>]*>", "", text)


def test_generated_tables_are_on_their_page(site: Path) -> None:
    text = html(site, "default-recipe.html")
    assert "<!-- include" not in text
    title = (ROOT / "results" / "tables" / "primary.md").read_text(encoding="utf-8").splitlines()[0].strip("# ")
    assert re.sub(r"\s+", " ", title) in re.sub(r"\s+", " ", text)
    assert "published" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gone](gone.md)\n", "gone.md"),
        ("[nowhere](index.md#nowhere)\n", "nowhere"),
        ("<!-- include results/tables/gone.md -->\n", "results/tables/gone.md, which is not there"),
        ("$$\\frac{a}{$$\n", ""),
    ],
)
def test_a_broken_page_fails(text: str, words: str, tmp_path: Path) -> None:
    for name in ("docs", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs" / "index.md").write_text(text)
    shutil.copy(ROOT / "scripts" / "docs_site.py", tmp_path / "scripts")
    config = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nextra_css: []\nplugins: []\nnav: [index.md]\n"
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0, done.stderr
    assert words in done.stderr


def test_new_pages_are_taken_up_by_themselves() -> None:
    nav = [{"Start": ["tour.md"]}, {"Your own": ["rules.md", "custom-*.md", "pitfalls/*.md"]}]
    pages = ["custom-networks.md", "custom-rules.md", "pitfalls/one.md", "rules.md", "tour.md", "watch.md"]
    named: set[str] = set()
    found = docs_site.navigation(nav, pages, named)
    assert found[1] == {"Your own": ["rules.md", "custom-networks.md", "custom-rules.md", "pitfalls/one.md"]}
    assert set(pages) - named == {"watch.md"}
