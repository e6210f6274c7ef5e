"""Writes evidence/search.md: every try to find what the documents leave unsaid, also those that failed.

python scripts/tries.py
"""

from pathlib import Path

from tabulate import tabulate

from walkback.audit.records import Record, read_records
from walkback.audit.settings import RULES
from walkback.audit.wording import command, how_long, other_optimiser, worded
from walkback.replication.agree import published
from walkback.replication.published import figures
from walkback.report.table import NONE, number

# Head, quantity, how it is written, where our record has it.
QUANTITIES = (
    ("acc", "acc", "acc", lambda r: r.accuracy),
    ("Γ", "gamma", "cos", lambda r: r.measurements.gamma),
    ("‖h_L‖", "h_norm", "norm", lambda r: r.measurements.h_norm[-1]),
    ("‖g_L‖", "g_norm", "norm", lambda r: r.measurements.g_norm[-1]),
    ("ρ", "growth", "norm", lambda r: r.measurements.growth),
    ("stability", "stability", "cos", lambda r: r.measurements.stability),
)


def main() -> None:
    records = read_records("evidence/search")
    Path("evidence/search.md").write_text(page(list(records)), encoding="utf-8")
    print(f"{len(records)} tries: evidence/search.md")


def page(tries: list[Record]) -> str:
    """The tries of each rule under the published figures that they look for."""
    parts = [
        "# What was tried",
        "Every try to find what the documents leave unsaid, also where it failed. One seed (42), at most 30 epochs, on "
        "the true CIFAR-10, augmented. Published figures are of 100 epochs: what grows in a try may grow further.",
    ]
    for rule in [r for r in RULES if any(t.spec.rule == r for t in tries)]:
        said = [published(figures("primary", rule, what=what)) for _, what, _, _ in QUANTITIES]
        rows = [["**published**", "100 epochs", *said]]
        rows += [row(t) for t in sorted(tries, key=lambda t: (t.spec.epochs, t.spec.name)) if t.spec.rule == rule]
        heads = ["what was chosen", "length", *(head for head, *_ in QUANTITIES)]
        parts += [f"## {RULES[rule]}", tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)]
    lines = [f"- `{command(t.spec, [t.spec.seed], Path('runs'))}`" for t in tries]
    return "\n\n".join([*parts, "## Commands", "\n".join(sorted(lines))]) + "\n"


def row(run: Record) -> list[str]:
    """What a try chose, and what came out."""
    spec = run.spec
    chosen = [*worded(spec.net_options), *worded(spec.rule_options), *spec.conventions, *other_optimiser(spec)] or [
        "our default"
    ]
    values = [(of(run), kind) for _, _, kind, of in QUANTITIES]
    found = [NONE if value is None else number(value, kind) for value, kind in values]
    return [", ".join(chosen), how_long(spec)[0], *found]


if __name__ == "__main__":
    main()
