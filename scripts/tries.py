"""Writes evidence/search.md: every try to find what the documents leave unsaid, also those that failed.

python scripts/tries.py
"""

from pathlib import Path

from tabulate import tabulate

from walkback.audit.as_published import SHIFTED
from walkback.audit.records import Record, read_records
from walkback.audit.settings import RULES
from walkback.audit.wording import command, how_long, other_optimiser, worded
from walkback.measures.over_sites import mean
from walkback.replication.agree import published
from walkback.replication.published import figures
from walkback.report.table import NONE, number

# Head, quantity, how it is written, where our record has it.
QUANTITIES = (
    ("acc", "acc", "acc", lambda r: r.accuracy),
    ("Γ", "gamma", "cos", lambda r: mean(cosines(r)[: len(r.measurements.h_norm) - 1])),
    ("deep cosine", "deep_cosine", "cos", lambda r: mean(cosines(r)[1:])),
    ("‖h_L‖", "h_norm", "norm", lambda r: r.measurements.h_norm[-1]),
    ("‖g_L‖", "g_norm", "norm", lambda r: r.measurements.g_norm[-1]),
    ("ρ", "growth", "norm", lambda r: r.measurements.growth),
    ("stability", "stability", "cos", lambda r: r.measurements.stability),
)

# What was looked at without keeping a record, seed 42.
LOOKED_AT = """## Looked at without a record

- FA, top head, writer, 30 epochs: accuracy 0.421, ‖h_L‖ 5.2e3, ‖g_L‖ 3.5e-5. With rms credit: 0.28, 4e7, 4e-9.
- EP, β = 1e-5, two epochs: accuracy 0.297, cosines of at most 0.003 at sites 0 to 3. β = 1e-4, reader, four epochs:
  accuracy 0.280, Γ +0.017.
- DFA as in the preset, four epochs, on blocks of other forms. LayerNorms with a gain and no shift: ‖g_L‖ 5.2e-6,
  9.2e-7, 3.6e-7, 1.9e-7, between those with both and with neither. Linear layers without biases, or ReLU for GELU: as
  in the preset."""
SETTINGS = {"primary": "", "wide-shallow": "d=512, L=2"}


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
    for where, rule, penalty in sorted({group(t) for t in tries}, key=in_order):
        here = [t for t in tries if group(t) == (where, rule, penalty)]
        rows = [["**published**", *printed] for printed in published_rows(where, rule, penalty)]
        rows += [row(t) for t in sorted(here, key=lambda t: (t.spec.epochs, t.spec.name))]
        heads = ["what was chosen", "length", *(head for head, *_ in QUANTITIES)]
        title = ", ".join(filter(None, [RULES[rule], SETTINGS[where], f"λ {penalty:g}" if penalty else ""]))
        parts += [f"## {title}", tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)]
    lines = [f"- `{command(t.spec, [t.spec.seed], Path('runs'))}`" for t in tries]
    return "\n\n".join([*parts, LOOKED_AT, "## Commands", "\n".join(sorted(lines))]) + "\n"


def group(run: Record) -> tuple[str, str, float]:
    """The published setting that a try is laid beside, its rule, and λ."""
    wide = run.spec.net_options.get("width") == 512
    return "wide-shallow" if wide else "primary", run.spec.rule, run.spec.penalty


def in_order(key: tuple[str, str, float]) -> tuple[int, int, float]:
    where, rule, penalty = key
    return [*RULES].index(rule), [*SETTINGS].index(where), penalty


def published_rows(where: str, rule: str, penalty: float) -> list[list[str]]:
    """What is published of 100 epochs, and of the 30 of the penalty's sweep."""
    sources = [("100 epochs", where, 0.0)] if not penalty else []
    sources += [("30 epochs", "lambda-sweep", penalty)] if where == "primary" else []
    rows = []
    for length, of, strength in sources:
        known = [figures(of, rule, what=what, penalty=strength) for _, what, _, _ in QUANTITIES]
        if any(known):
            rows.append([length, *(published(some) if some else NONE for some in known)])
    return rows


def cosines(run: Record) -> list[float | None]:
    """Cosines by site, of FA one site off, as its published ones seem to be paired."""
    m = run.measurements
    return m.cosine_below[1:] if run.spec.rule in SHIFTED and m.cosine_below else m.cosine


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
