"""What a person reads: Verdict -> Report, as text, Markdown, LaTeX, HTML and JSON. Nothing is computed here."""

from __future__ import annotations

import json
import textwrap
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.errors import FormatError
from walkback.nulls import reads_as

SCHEMA = "walkback.report/1"

# Column of the per-layer table -> key in `per_layer`. Columns nobody measured are left out of the print.
_COLUMNS = {
    "‖h‖": "h_norm",
    "‖g‖": "g_norm",
    "cosine": "cosine",
    "clamped": "cosine_clamped",
    "under ε": "below_eps",
    "95 %": "cosine_low",
    "null": "null_high",
    "ρ_pert": "perturbation",
    "nudge": "nudging",
    "nudge rel.": "nudging_relative",
}
# A table of its own: only measured when asked.
_PRECISION = {
    "off float64": "float64_disagreement",
    "shift": "float64_shift",
    "ε share": "epsilon_share",
    "absorbed": "absorption",
}
_CONTROLS = {
    "perturbation_bp": "control, ρ_pert of the BP gradient by site",
    "perturbation_random": "control, ρ_pert of a random vector by site",
    "nudging_bp": "control, nudge along the BP gradient by site",
    "nudging_bp_relative": "control, relative nudge along the BP gradient by site",
    "fresh_mean": "control, mean cosine under fresh feedback by site",
    "fresh_low": "control, lower end of the cosine under fresh feedback by site",
    "fresh_high": "control, upper end of the cosine under fresh feedback by site",
}
_LATEX = {
    "‖h‖": r"$\|h_l\|$",
    "growth": "growth",
    "‖g‖": r"$\|g_l\|$",
    "under ε": r"under $\varepsilon$",
    "ρ_pert": r"$\rho_\mathrm{pert}$",
    "ε share": r"$\varepsilon$ share",
}


# What a report file must have, and as what.
_SHAPES = {
    **dict.fromkeys(("edition", "verdict"), str),
    **dict.fromkeys(("values", "per_layer", "thresholds", "conditions", "reasons"), dict),
    **dict.fromkeys(("failed", "chain", "findings", "advisories"), list),
}
_JSON_NAMES = {str: "a string", dict: "an object", list: "a list"}


@dataclass(frozen=True)
class Report:
    """A diagnosis: the numbers, the findings, the verdict, and why.

    Args:
        verdict: "trustworthy", "walked back" or "inconclusive".
        failed: the checks that walk the claim back, such as ("D1", "D2").
        measurement_valid: can the reference be measured? True, False, or None (not tested).
        depth_used: do trained blocks beat frozen ones? True, False, or None (not tested).
        values: scalars; per_layer: lists over sites 0…L; reasons: why a field is None.

    >>> import walkback as wb
    >>> report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(8), 0.60, 0.35, method_name="BP")
    >>> report.verdict, report.failed
    ('trustworthy', ())
    """

    edition: str
    verdict: str
    failed: tuple[str, ...]
    measurement_valid: bool | None
    depth_used: bool | None
    submode: str | None
    values: dict[str, float | None]
    per_layer: dict[str, list[float | None] | None]
    thresholds: dict[str, float]
    chain: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    method: str = ""
    notes: str = ""
    headline_acc: float | list[float] | None = None
    frozen_baseline_acc: float | list[float] | None = None
    bp_acc: float | list[float] | None = None
    aggregates: dict[str, float | None] = field(default_factory=dict)
    controls: dict[str, list[float | None]] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    advisories: tuple[str, ...] = ()
    schema: str = SCHEMA

    # -- text ----------------------------------------------------------------------------------------

    @property
    def verdict_line(self) -> str:
        """The published last line of a report."""
        if self.failed:
            return f"VERDICT: needs walk-back: {', '.join(self.failed)}"
        if self.verdict == "inconclusive":
            return f"VERDICT: inconclusive: {self._undecided()}"
        return "VERDICT: trustworthy"

    def _undecided(self) -> str:
        reason = self.findings[-1]["reason"]
        if reason.startswith("inconclusive: "):
            return reason.removeprefix("inconclusive: ")
        flagged = [f["check"] for f in self.findings if f["flagged"] and f["title"] != "direction stability"]
        untested = [f["check"] for f in self.findings if f["flagged"] is None]
        if not flagged:
            tested = [f["check"] for f in self.findings if f["flagged"] is not None and f["check"] != "c"]
            return f"{untested[0]} was not tested" if tested else "nothing was tested"
        if self.edition == "intrinsic":
            return "D2 was not tested"
        return f"{flagged[0]} flags, but {next(c for c in untested if c in ('D1', 'D2'))} was not tested"

    def __post_init__(self) -> None:
        for name in ("method", "notes"):
            value = getattr(self, name)
            object.__setattr__(self, name, "" if value is None else str(value))

    def __str__(self) -> str:
        parts = [
            self._title(),
            *([self.notes] if self.notes else []),
            self._conditions_line(),
            "",
            *(line for rows in self._layer_tables() for line in (_table(*rows, "simple"), "")),
            _table(*self._finding_rows(), "simple"),
            *self._below_tables(),
            "",
            "Walk-back chain",
            *(_wrap(f"{s['step']}. {_ask(s['title'])} {s['text']}.") for s in self.chain),
            "",
            f"measurement valid: {_yes(self.measurement_valid)} · depth used: {self._depth_word()}"
            + (f" · sub-mode: {self.submode}" if self.submode else ""),
            self.verdict_line,
        ]
        return "\n".join(parts)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        from walkback.exhibits.card import card

        return card(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """All forms at once: a notebook shows the richest it knows, and keeps the others for where it goes next."""
        return {"text/plain": str(self), "text/markdown": self.to_markdown(), "text/html": self._repr_html_()}

    def to_html(self) -> str:
        """The report as one HTML file without scripts or network, its per-layer figures drawn inside."""
        from walkback.exhibits.card import document

        return document(self)

    def to_markdown(self) -> str:
        """The report as GitHub Markdown."""
        return "\n".join(
            [
                f"### {self._title()}",
                *(["", self.notes] if self.notes else []),
                "",
                self._conditions_line(),
                "",
                *(line for rows in self._layer_tables() for line in (_table(*rows, "github"), "")),
                _table(*self._finding_rows(), "github"),
                "",
                *[line for text in self._below_tables() if text for line in (f"- {text.strip()}",)],
                "",
                *(f"{s['step']}. **{_ask(s['title'])}** {s['text']}." for s in self.chain),
                "",
                f"Measurement valid: {_yes(self.measurement_valid)}. Depth used: {self._depth_word()}."
                + (f" Sub-mode: {self.submode}." if self.submode else ""),
                "",
                f"**{self.verdict_line}**",
            ]
        )

    def to_latex(self) -> str:
        """Two booktabs tables with the thresholds in the caption, ready to be put into a paper."""
        name = tex(self.method or "the network")
        limits = ", ".join(f"{f['check']} flags at {f['flags_when']}" for f in self.findings)
        edition = f"edition {self.edition}"
        captions = (
            f"Per-layer state of {name}: {tex(self._conditions_line())}",
            f"Precision of {name}'s reference, by site",
        )
        layers = [
            line
            for caption, (head, rows) in zip(captions, self._layer_tables())
            for line in (
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{caption}.}}",
                _booktabs([_LATEX.get(h, tex(h)) for h in head], rows[:-1]),
                r"\end{table}",
            )
        ]
        return "\n".join(
            [
                *layers,
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{Checks of {name} ({tex(edition)}; {tex(limits)}). {tex(self.verdict_line)}.}}",
                _booktabs(*self._finding_rows()),
                r"\end{table}",
            ]
        )

    # -- data ----------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the shape of schema `walkback.report/1`."""
        order = (
            "schema",
            "method",
            "notes",
            "edition",
            "verdict",
            "failed",
            "measurement_valid",
            "depth_used",
        )
        flat = asdict(self)
        flat["failed"], flat["chain"] = list(self.failed), list(flat["chain"])
        flat["findings"], flat["advisories"] = list(flat["findings"]), list(self.advisories)
        return {**{k: flat.pop(k) for k in order}, **flat}

    def to_json(self) -> str:
        """`to_dict` as JSON; what was not measured is null, never NaN."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def save(self, path: str | Path) -> Path:
        """Write the JSON, all of it or nothing."""
        path = Path(path)
        scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                scratch.write_text(self.to_json() + "\n", encoding="utf-8")  # readable as any file the user writes
                scratch.replace(path)
            except BaseException:
                scratch.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise FormatError(f"Expected to write the report to {path}, but: {error}.") from None
        return path

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read what `save` wrote."""
        from walkback.checks import read_table

        return cls.from_dict(read_table(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "the report") -> Report:
        """The inverse of `to_dict`."""
        schema = data.get("schema") if isinstance(data, dict) else None
        if not isinstance(data, dict) or schema != SCHEMA:
            raise FormatError(
                f"Expected {where} to be a report of schema {SCHEMA}, but got {schema or type(data).__name__}. "
                "Numbers that are not a report go through walkback.judge."
            )
        for name, kind in _SHAPES.items():
            if not isinstance(data.get(name), kind):
                got = type(data[name]).__name__ if name in data else "nothing"
                raise FormatError(
                    f"Expected {where} to be a whole report of {SCHEMA}, with {name} as {_JSON_NAMES[kind]}, but got "
                    f"{got}."
                )
        fields: dict[str, Any] = dict(data)
        for name in ("failed", "chain", "findings", "advisories"):
            fields[name] = tuple(fields[name])
        try:
            return cls(**fields)
        except TypeError as error:
            raise FormatError(f"Expected {where} to have the fields of {SCHEMA}, but: {error}.") from None

    # -- rows ----------------------------------------------------------------------------------------

    def _title(self) -> str:
        return f"{self.method or 'Network'}: {self.edition} protocol"

    def _conditions_line(self) -> str:
        c = self.conditions
        if not {"samples", "batches", "mode", "dtype", "device"} <= set(c):
            what = f"the last numbers in {self.run['epochs']} rows" if "epochs" in self.run else "logged numbers"
            return f"judged from {what}; ‖g‖ taken as that of a mean loss over 128 samples"
        dtype = c["dtype"] + (" under autocast" if c.get("autocast") else "")
        if c.get("gradient_dtype", c["dtype"]) != c["dtype"]:
            dtype += f" with gradients in {c['gradient_dtype']}"
        line = f"{c['samples']} samples in {c['batches']} batches, {c['mode']} mode, {dtype} on {c['device']}"
        return line + "; ‖g‖ is the per-sample norm ÷ 128"

    def _depth_word(self) -> str:
        undecided = self.depth_used is None and self.findings and "inconclusive" in self.findings[-1]["reason"]
        return "undecided" if undecided else _yes(self.depth_used)

    def _sites(self) -> int:
        keys = (*_COLUMNS.values(), *_PRECISION.values())
        return max((len(self.per_layer.get(key) or []) for key in keys), default=0)

    def _layer_tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """The state by site, and where it was measured the precision of the reference: heads and rows of each."""
        tables = [self._layer_rows(_COLUMNS), self._layer_rows(_PRECISION)]
        return [table for table in tables if len(table[0]) > 1]

    def _layer_rows(self, columns: dict[str, str] | None = None) -> tuple[list[str], list[list[str]]]:
        columns = {**_COLUMNS, **_PRECISION} if columns is None else columns
        lists = {head: self.per_layer.get(key) for head, key in columns.items()}
        lists = {head: values for head, values in lists.items() if values and any(v is not None for v in values)}
        sites = self._sites()
        heads = ["site"]
        for head in lists:
            heads += [head, *{"‖h‖": ["growth"], "null": ["reads"]}.get(head, ())]
        rows = []
        for site in range(sites):
            row = [str(site)]
            for head, values in lists.items():
                assert values is not None
                value = values[site] if site < len(values) else None
                row.append(self._cell(head, site, value))
                if head == "null":
                    row.append(self.reads_as(site) or "–")
                if head == "‖h‖":
                    before = values[site - 1] if site and self._same_shape(site) else None
                    row.append(f"{value / before:.3g}x" if value is not None and before else "")
            rows.append(row)
        where = {"reference precision": "off float64"}.get(self.findings[1]["title"], "‖g‖")
        limits = {"growth": _limit(self.findings, 0), where: _limit(self.findings, 1)}
        return heads, [*rows, ["flags"] + [limits.get(h, "") for h in heads[1:]]]

    def _cell(self, head: str, site: int, value: float | None) -> str:
        if head == "95 %" and value is not None:
            return f"{value:+.3f}…{(self.per_layer.get('cosine_high') or [])[site]:+.3f}"
        if head == "null" and value is not None:
            return f"±{value:.3f}"
        if head in ("under ε", "ε share"):
            return _share(value)
        return _number(value, head in ("cosine", "clamped", "ρ_pert", "shift"))

    def reads_as(self, site: int) -> str | None:
        """The word signal where the cosine and its interval lie outside the null band of the site, else noise.

        None where there is no band.
        """
        names = ("cosine", "null_low", "null_high", "cosine_low", "cosine_high")
        cosine, low, high, *interval = ((self.per_layer.get(name) or {site: None})[site] for name in names)
        return reads_as(cosine, low, high, (interval[0], interval[1]))

    def _same_shape(self, site: int) -> bool:
        """Growth is only taken between sites of one shape."""
        shapes = self.conditions.get("state_shapes")
        return shapes is None or len(shapes) <= site or shapes[site] == shapes[site - 1]

    def _finding_rows(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for f in self.findings:
            value = (
                "–"
                if f["value"] is None
                else f"{f['value']:+.1f} pp"
                if "pp" in f["flags_when"]
                else _number(f["value"])
            )
            said = {True: "FLAGGED", False: "ok", None: "not tested"}[f["flagged"]]
            if f["flagged"] is None and "inconclusive" in f["reason"]:
                said = "inconclusive"
            if f["title"] == "direction stability" and f["flagged"] is not None:
                said = "drift" if f["flagged"] else "no drift"
            rows.append([f["check"], f["title"], value, f["flags_when"], said])
        return ["check", "", "value", "flags when", "result"], rows

    def _below_tables(self) -> list[str]:
        """Paragraphs under the tables, each after an empty line."""
        parts = (self._about_stream(), self._about_gamma(), self._about_run(), self._remarks())
        return [line for part in parts if part for line in ("", *part)]

    def _about_gamma(self) -> list[str]:
        said = []
        v = self.values
        if v.get("gamma") is not None:
            extra = [f"Γ = {v['gamma']:+.3f} (sites 0…L−1)"]
            if v.get("gamma_concentration") is not None:
                extra.append(f"one site carries {v['gamma_concentration']:.0%} of Σ|cos|")
            if v.get("deep_cosine") is not None:
                extra.append(f"deep mean {v['deep_cosine']:+.3f}")
            said.append("; ".join(extra))
            others = [f"{k} {_number(x, True)}" for k, x in self.aggregates.items() if k != "layers"]
            if others:
                said.append(f"Γ averaged in other orders: {', '.join(others)}")
        fresh = self.conditions.get("fresh_feedback") or {}
        for name, letter in (("gamma", "Γ"), ("deep_cosine", "deep mean")):
            if fresh.get(name) and v.get(name) is not None:
                mean, std = fresh[name]["mean"], fresh[name]["std"]
                apart = f", {abs(v[name] - mean) / std:.1f}σ from ours" if std else ""
                said.append(f"{letter} with fresh feedback {mean:+.3f} ± {std:.3f} ({fresh['draws']} draws){apart}")
        if "not measured because" in fresh:
            said.append(f"fresh feedback not measured: {fresh['not measured because']}")
        for name, numbers in self.controls.items():
            said.append(f"{_CONTROLS.get(name, name)}: {', '.join(_number(x, True) for x in numbers)}")
        return said

    def _about_run(self) -> list[str]:
        run = self.run
        fired, unit, total = run.get("fired"), run.get("unit", "epoch"), run.get("total")
        if not isinstance(fired, dict) or not fired:
            return []
        layer, left = run.get("layer") or {}, run.get("left") or {}

        def when(check: str, at: Any) -> str:
            if at is None:
                return f"{check} never"
            where = f" in layer {layer[check]}" if layer.get(check) is not None else ""
            ahead = "" if left.get(check) is None or not total else f" ({left[check] / total:.0%} left)"
            return f"{check} at {unit} {at}{where}{ahead}"

        length = f"; {total:g} {unit}s in all" if total else f" ({run['epochs']} epochs)" if run.get("epochs") else ""
        said = [f"first flagged: {', '.join(when(check, at) for check, at in fired.items())}{length}"]
        if run.get("lost") is not None and total:
            spare = run.get("lost_left") or 0
            share = f"{spare / total:.0%} of the compute"
            said.append(f"trust lost at {unit} {run['lost']}: {spare:g} of {total:g} {unit}s were left, {share}")
        return said

    def _remarks(self) -> list[str]:
        untested = [f"{f['check']}: {f['reason']}" for f in self.findings if f["flagged"] is None]
        return [*untested, *(f"note: {text}" for text in self.advisories)]

    def _about_stream(self) -> list[str]:
        """Raw values that no table shows: total growth, and stability where the edition has no check for it."""
        said = []
        if self.values.get("growth_total") is not None:
            said.append(f"growth over the whole depth {_number(self.values['growth_total'])}x")
        checked = any(f["title"] == "direction stability" for f in self.findings)
        if not checked and self.values.get("stability") is not None:
            limit = self.thresholds["stability_drift_ceiling"]
            said.append(f"direction stability of g_L {self.values['stability']:+.3f} (drift above {limit:g})")
        elif not checked and self.conditions.get("samples"):
            said.append(f"direction stability of g_L not measured: {self.reasons.get('stability', 'not given')}")
        return ["; ".join(said)] if said else []


# -- formatting -----------------------------------------------------------------------------------------------


def _number(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    if signed:
        return f"{value:+.3f}" if value == 0 or abs(value) >= 5e-4 else f"{value:+.1e}"
    return f"{value:.3g}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.2e}"


def _ask(title: str) -> str:
    return title if title.endswith("?") else f"{title}:"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="     ")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _limit(findings: tuple[dict[str, Any], ...], index: int) -> str:
    return findings[index]["flags_when"] if len(findings) > index else ""


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not tested"}[value]


def _table(head: list[str], rows: list[list[str]], style: str) -> str:
    align = ["left" if left else "right" for left in _left(head)]
    return tabulate(rows, head, tablefmt=style, colalign=align, disable_numparse=True)


def _left(head: list[str]) -> list[bool]:
    """Words stand left, numbers right."""
    return [i == 0 or h in ("", "result", "flags when") for i, h in enumerate(head)]


def _booktabs(head: list[str], rows: list[list[str]]) -> str:
    columns = "".join("l" if left else "r" for left in _left(head))
    lines = [r"  \begin{tabular}{" + columns + "}", r"    \toprule"]
    lines.append("    " + " & ".join(h if "$" in h else tex(h) for h in head) + r" \\")
    lines.append(r"    \midrule")
    lines += ["    " + " & ".join(tex(cell) for cell in row) + r" \\" for row in rows]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}"])


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "‖": r"$\|$", "÷": r"$\div$",
    "ε": r"$\varepsilon$", "–": "--", "—": "---", "…": r"\ldots{}", "−": r"$-$", "·": r"$\cdot$", "×": r"$\times$",
    "±": r"$\pm$", "≈": r"$\approx$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\to$", "∞": r"$\infty$", "†": r"\dag{}",
    "²": "$^2$", "₀": "$_0$", "|": r"\textbar{}",
}  # fmt: skip
_TEX |= {
    letter: rf"$\{name}$"
    for letters, names in (
        ("αβγδζηθκλμν", "alpha beta gamma delta zeta eta theta kappa lambda mu nu"),
        ("ξπρστφχψω", "xi pi rho sigma tau phi chi psi omega"),
        ("ΓΔΘΛΞΠΣΦΨΩ", "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"),
    )
    for letter, name in zip(letters, names.split(), strict=True)
}


def tex(text: str) -> str:
    """Text that any LaTeX engine sets as it is; a paragraph break would end a caption."""
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))
