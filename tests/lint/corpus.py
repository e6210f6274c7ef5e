"""The labelled corpus of evaluation snippets, and how lint does on it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from walkback.lint import Finding, lint

HERE = Path(__file__).parent / "corpus.txt"
# Each written and labelled before lint was run on it, by the lines that docs/lint.md settles.
_SETS = ("", *(f"_{n}" for n in ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")))
UNSEEN = tuple(HERE.with_name(f"fresh{name}.txt") for name in _SETS)
MARK = re.compile(r"[ ]*#! (P\d\d)$")


@dataclass(frozen=True)
class Snippet:
    name: str
    code: str
    expected: tuple[tuple[str, int], ...]  # (pitfall, line)


@dataclass(frozen=True)
class Score:
    """Findings on the corpus: each is (pitfall, snippet, line)."""

    true: tuple[tuple[str, str, int], ...]
    false: tuple[tuple[str, str, int], ...]
    missed: tuple[tuple[str, str, int], ...]

    @property
    def precision(self) -> float:
        return len(self.true) / (len(self.true) + len(self.false))

    @property
    def recall(self) -> float:
        return len(self.true) / (len(self.true) + len(self.missed))

    def table(self) -> str:
        """By pitfall: how many marks there are, found, missed, and what is found where there is none."""
        counts = [Counter(code for code, *_ in part) for part in (self.true, self.missed, self.false)]
        codes = sorted(set().union(*counts))
        rows = [(code, *(c[code] for c in counts)) for code in codes]
        rows.append(("all", *(sum(c.values()) for c in counts)))
        lines = ["| pitfall | found | missed | false |", "|---|---|---|---|"]
        return "\n".join(lines + [f"| {code} | {t} | {m} | {f} |" for code, t, m, f in rows])


def snippets(file: Path = HERE) -> list[Snippet]:
    _, *parts = re.split(r"^### ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for part in parts:
        name, _, body = part.partition("\n")
        lines = body.rstrip("\n").split("\n")
        marks = [(m[1], n) for n, line in enumerate(lines, 1) if (m := MARK.search(line))]
        found.append(Snippet(name, "\n".join(MARK.sub("", line) for line in lines) + "\n", tuple(marks)))
    return found


def score(folder: Path, file: Path = HERE) -> Score:
    true, false, missed = [], [], []
    for number, snippet in enumerate(snippets(file)):
        path = folder / f"snippet_{number}.py"
        path.write_text(snippet.code, encoding="utf-8")
        said = {(f.code, f.line) for f in found(path)}
        expected = set(snippet.expected)
        for group, part in ((said & expected, true), (said - expected, false), (expected - said, missed)):
            part += [(code, snippet.name, line) for code, line in sorted(group)]
    return Score(tuple(true), tuple(false), tuple(missed))


def found(path: Path) -> tuple[Finding, ...]:
    linted = lint(path)
    assert not linted.problems, linted.problems
    return linted.findings


if __name__ == "__main__":
    import tempfile

    for file in (HERE, *UNSEEN):
        with tempfile.TemporaryDirectory() as folder:
            result = score(Path(folder), file)
        print(result.table())
        print(f"precision {result.precision:.0%}, recall {result.recall:.0%}, {len(snippets(file))} snippets")
        for label, part in (("false", result.false), ("missed", result.missed)):
            for one in part:
                print(label, *one)
