"""What mkdocs does not do by itself for our site (a hook of mkdocs.yml).

Pages are written to be read in the repository: they link to files outside docs/, say with a comment where a generated
table belongs, and have their equations in TeX. Here the linked files come along, the tables are put in, and equations
become MathML, so that the finished site loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)((?:#[^)\s]*)?)\)")
INCLUDE = re.compile(r"<!-- include (\S+) -->")
EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\s*\n|\Z)", re.DOTALL)
NAMES = "<!-- every public name -->"
EQUATION = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def uri(path: Path) -> str:
    """Where a file of the repository is on the site: docs/ is its root, everything else keeps its path."""
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")


def linked(page: Path, text: str) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for target, _ in LINK.findall(text):
        path = Path(os.path.normpath(page.parent / target))
        if path.is_relative_to(ROOT) and path.is_file():
            yield path


def on_files(files: Files, config: Any) -> Files:
    """Take what the navigation names and what pages link to along; then make the navigation from what there is."""
    named = re.findall(r"[\w./-]+\.md", str(config.nav))
    todo = [ROOT / name for name in named if (ROOT / name).is_file()]
    todo += [Path(f.abs_src_path or "") for f in files.documentation_pages()]
    while todo:
        path = todo.pop()
        if uri(path) not in files.src_uris:
            files.append(File.generated(config, uri(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            todo += [p for p in linked(path, text) if uri(p) not in files.src_uris]
    pages = sorted((f.src_uri for f in files.documentation_pages()), key=lambda p: p.replace("index.md", ""))
    there: set[str] = set()
    config.nav = navigation(config.nav, pages, there)
    rest = [p for p in pages if p not in there and (ROOT / "docs" / p).is_file()]
    if rest:
        config.nav.append({"More": rest})
    return files


def navigation(nav: Any, pages: list[str], named: set[str]) -> Any:
    """The navigation with patterns replaced by the pages they match, each page once; `named` collects them."""
    if isinstance(nav, dict):
        return {title: navigation(part, pages, named) for title, part in nav.items()}
    if isinstance(nav, str):
        named.add(nav)
        return nav
    found: list[Any] = []
    plain = {part for part in nav if isinstance(part, str) and "*" not in part}
    for part in nav:
        if isinstance(part, str) and "*" in part:
            matching = [p for p in pages if fnmatch(p, part) and p.count("/") == part.count("/")]
            found += [navigation(p, pages, named) for p in matching if p not in named | plain]
        else:
            found.append(navigation(part, pages, named))
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put in what is generated, and let links lead to where their files are on the site."""
    here = Path(page.file.abs_src_path)
    markdown = LINK.sub(lambda match: relinked(match, here, here), markdown)
    markdown = INCLUDE.sub(lambda match: included(match[1], here), markdown)
    return markdown.replace(NAMES, reference()) if NAMES in markdown else markdown


def included(name: str, page: Path) -> str:
    """A generated table, its heading as text (the page has its own); what it misses is folded away."""
    path = ROOT / name
    if not path.is_file():
        raise PluginError(f"{uri(page)} includes {name}, which is not there: `make evidence` makes the tables.")
    text = LINK.sub(lambda match: relinked(match, path, page), path.read_text(encoding="utf-8"))
    text, _, missing = re.sub(r"^#+ (.*)", r"**\1**", text, flags=re.MULTILINE).partition("\nMissing:\n")
    if not missing:
        return text
    folded = (
        f'<details markdown="1"><summary>Missing, and the commands that would train it</summary>\n{missing}\n</details>'
    )
    return f"{text}\n{folded}\n"


def relinked(match: re.Match[str], source: Path, page: Path) -> str:
    """A link as `source` writes it, as `page` has to write it; both are files of the repository."""
    path = Path(os.path.normpath(source.parent / match[1]))
    if not path.is_relative_to(ROOT) or not path.is_file():
        return match[0]  # mkdocs reports it
    start = os.path.dirname(uri(page)) or "."  # noqa: PTH120  # a place on the site, not a file
    return f"]({os.path.relpath(uri(path), start)}{match[2]})"


def reference() -> str:
    """A mkdocstrings section for every public name of walkback, and for all functions of its public modules."""
    sys.path.insert(0, str(ROOT / "src"))  # the names of this checkout, whatever is installed
    import walkback

    modules = [n for n in walkback.__all__ if n in walkback._MODULES]
    names = [n for n in walkback.__all__ if n not in modules]
    errors = [n for n in names if n.endswith("Error")]
    kinds = {
        "Functions": [n for n in names if n[0].islower()],
        "Classes": [n for n in names if n[0].isupper() and n not in errors],
        "Errors": errors,
    }
    text = []
    for title, members in kinds.items():
        text += [f"## {title}", *(f"::: {walkback._HOMES[name]}.{name}" for name in members)]
    text.append("## Modules")
    text += [f"::: {walkback._HOMES[name]}\n    options:\n      show_root_full_path: true" for name in modules]
    return "\n\n".join(text)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Equations become MathML, which browsers draw themselves."""
    return EQUATION.sub(lambda match: mathml(match[3], match[2] == "["), html)


def mathml(tex: str, block: bool) -> str:
    """One equation.

    >>> mathml("a_l", block=False)
    '<math ...><mrow><msub><mi>a</mi><mi>l</mi></msub></mrow></math>'
    """
    drawn = convert(html.unescape(tex).strip(), display="block" if block else "inline")
    return drawn.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')  # ‖ as tall as its line


class Examples(griffe.Extension):
    """Examples in docstrings are shown as Python sessions."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda m: f"```pycon\n{m[0]}\n```", obj.docstring.value)
