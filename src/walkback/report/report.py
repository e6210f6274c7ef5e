"""What a person reads: Verdict -> Report, as text, Markdown, LaTeX, HTML and JSON. Nothing is computed here."""

from __future__ import annotations

import copy
import json
import textwrap
import uuid
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.errors import FormatError
from walkback.measures.nulls import reads_as
from walkback.notes import Note, coded
from walkback.report.formats import report_1

SCHEMA = "walkback.report/2"

# Column of the per-layer table -> key in `per_layer`. Columns nobody measured are left out of the print.
_COLUMNS = {
    "‖h‖": "h_norm",
    "‖g‖": "g_norm",
    "cosine": "cosine",
    "zero credit": "zero_credit",
    "with next": "cosine_above",
    "with previous": "cosine_below",
    "clamped": "cosine_clamped",
    "under ε": "below_eps",
    "95 %": "cosine_low",
    "null": "null_high",
    "ρ_pert": "perturbation",
    "nudge": "nudging",
    "nudge rel.": "nudging_relative",
    "nudge rms": "nudging_rms",
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
    "nudging_bp_rms": "control, nudge by η√d along the BP gradient by site",
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
    **dict.fromkeys(("failed", "chain", "findings", "notes", "nonfinite"), list),
}
_JSON_NAMES = {str: "a string", dict: "an object", list: "a list"}


@dataclass(frozen=True)
class Report:
    """A diagnosis: the numbers, the findings, the verdict, and why.

    Args:
        verdict: "passes", "walked back" or "undecided".
        failed: the checks that walk the claim back, such as ("D1", "D2").
        measurement_valid: is the reference valid by the edition's own check? True, False, or None (not tested).
        clamped_readable: can the cosine be read as scripts compute it, with ε = 1e-8, in this dtype?
        unclamped_exact: is the cosine without a clamp the one that float64 gives? None where that was not asked.
        depth_used: do trained blocks beat frozen ones? True, False, or None (not tested).
        nonfinite, altered, doubted: what is wrong with the reference itself, as data.
        notes: everything else that is to be said, as Notes; `advisories` has them as sentences.
        values: scalars; per_layer: lists over sites 0…L; reasons: why a field is None.

    >>> import walkback as wb
    >>> report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(8), 0.60, 0.35, method_name="BP")
    >>> report.verdict, report.failed
    ('passes', ())
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
    notes: tuple[Note, ...] = ()
    clamped_readable: bool | None = None
    unclamped_exact: bool | None = None
    nonfinite: tuple[dict[str, Any], ...] = ()
    altered: dict[str, Any] | None = None
    doubted: dict[str, Any] | None = None
    headline_acc: float | list[float] | None = None
    frozen_baseline_acc: float | list[float] | None = None
    bp_acc: float | list[float] | None = None
    aggregates: dict[str, float | None] = field(default_factory=dict)
    controls: dict[str, list[float | None]] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    # -- text ----------------------------------------------------------------------------------------

    @property
    def verdict_line(self) -> str:
        """The last line: the verdict, what decides it or would, what flags beside it, and where editions differ."""
        decides = {"walked back": ", ".join(self.failed), "undecided": "; ".join(self._undecided())}
        line = ": ".join(filter(None, ("VERDICT", self.verdict, decides.get(self.verdict))))
        flagged = self._flagged_beside()
        if flagged:
            line += f"{', with' if self.verdict == 'passes' else ';'} {', '.join(flagged)}"
        return "; ".join((line, *(_other_edition(note) for note in coded(self.notes, "editions-differ"))))

    def _undecided(self) -> list[str]:
        """Each check that the verdict waits for, and what would decide it."""
        said = []
        for f in self.findings:
            if f["flagged"] is None and f["title"] == "depth utility":
                given = {"not-given": "depth not tested (give frozen_acc)", "task": f"depth not tested: {f['reason']}"}
                said.append(given.get(f["cause"], f"depth: {f['reason']}"))
            elif f["flagged"] is None and f["title"] != "direction stability":
                said.append(f"{f['check']} not tested: {f['reason']}")
        return said

    def _flagged_beside(self) -> list[str]:
        """Checks that flag without deciding: growth alone, or in three-check a reference under its floor alone."""
        alone = [f for f in self.findings if f["flagged"] and f["check"] not in self.failed]
        needs = {"D1": "D2", "D2": "D1"} if self.edition == "three-check" else {}
        said = []
        for f in alone:
            if f["title"] == "direction stability":
                continue
            value = (
                "" if f["value"] is None else f"{_number(f['value'])}{'x' if f['title'] == 'scale stability' else ''}; "
            )
            other = (
                f"it decides only together with {needs[f['check']]}"
                if f["check"] in needs
                else "it decides nothing alone"
            )
            said.append(f"{f['check']} flagged ({value}{other})")
        return said

    @property
    def advisories(self) -> tuple[str, ...]:
        """The notes as sentences, but for what the user wrote."""
        return tuple(note.text for note in self.notes if note.code != "remark")

    @property
    def remark(self) -> str:
        """What the user wrote under `notes`."""
        return " ".join(note.text for note in coded(self.notes, "remark"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", "" if self.method is None else str(self.method))

    def __str__(self) -> str:
        parts = [
            self._title(),
            *([self.remark] if self.remark else []),
            self._conditions_line(),
            "",
            *(line for rows in self._layer_tables() for line in (_table(*rows, "simple"), "")),
            _table(*self._finding_rows(), "simple"),
            *self._below_tables(),
            "",
            "Walk-back chain",
            *(_wrap(f"{s['step']}. {_ask(s['title'])} {s['text']}.") for s in self.chain),
            "",
            " · ".join(f"{question}: {answer}" for question, answer in self.answers()),
            self.verdict_line,
        ]
        return "\n".join(parts)

    def answers(self) -> list[tuple[str, str]]:
        """The questions every report answers, with yes, no, not tested, undecided; and the sub-mode, if any."""
        off = self.values.get("cosine_error")
        exact = _yes(self.unclamped_exact) + ("" if off is None else f" (off float64 by {off:.1g})")
        said = [("clamped cosine readable", _yes(self.clamped_readable)), ("unclamped cosine exact", exact)]
        said.append(("depth used", self._depth_word()))
        return [*said, ("sub-mode", self.submode)] if self.submode else said

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        from walkback.report.html import card

        return card(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """All forms at once: a notebook shows the richest it knows, and keeps the others for where it goes next."""
        return {"text/plain": str(self), "text/markdown": self.to_markdown(), "text/html": self._repr_html_()}

    def to_html(self) -> str:
        """The report as one HTML file without scripts or network, its per-layer figures drawn inside."""
        from walkback.report.html import document

        return document(self)

    def to_markdown(self) -> str:
        """The report as GitHub Markdown."""
        return "\n".join(
            [
                f"### {self._title()}",
                *(["", self.remark] if self.remark else []),
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
                " ".join(f"{question.capitalize()}: {answer}." for question, answer in self.answers()),
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
        """Plain values in the shape of schema `walkback.report/2`."""
        order = ("schema", "method", "edition", "verdict", "failed", "measurement_valid", "clamped_readable",
                 "unclamped_exact", "depth_used", "submode", "nonfinite", "altered", "doubted")  # fmt: skip
        flat = {f.name: getattr(self, f.name) for f in fields(self)}
        flat |= {name: list(flat[name]) for name in ("failed", "chain", "findings", "nonfinite")}
        flat["notes"] = [note.to_dict() for note in self.notes]
        return copy.deepcopy({**{k: flat.pop(k) for k in order}, **flat})

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
        from walkback.verdict.checks import read_table

        return cls.from_dict(read_table(path), str(path))

    @classmethod
    def from_dict(cls, data: object, where: str = "the report") -> Report:
        """The inverse of `to_dict`."""
        schema = data.get("schema") if isinstance(data, dict) else None
        if isinstance(data, dict) and schema == report_1.SCHEMA:
            data, schema = report_1.as_report_2(data, where), SCHEMA
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
        given: dict[str, Any] = dict(data)
        for name in ("failed", "chain", "findings", "nonfinite"):
            given[name] = tuple(given[name])
        try:
            given["notes"] = tuple(Note.of(note) for note in given["notes"])
            return cls(**given)
        except (TypeError, KeyError, AttributeError) as error:
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
        undecided = self.depth_used is None and self.findings and self.findings[-1]["cause"] == "straddles"
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
        if not any(lists.get("zero credit") or ()):  # a column of its own where there are any
            lists.pop("zero credit", None)
        if not coded(self.notes, "shifted-pairing"):
            lists = {head: values for head, values in lists.items() if not head.startswith("with ")}
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
        if head in ("under ε", "ε share", "zero credit"):
            return _share(value)
        return _number(value, head in ("cosine", "with next", "with previous", "clamped", "ρ_pert", "shift"))

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
            if f["cause"] == "straddles":
                said = "undecided"
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


class DiagnosticReport(Report):
    """A report in the words and the logic of the published README: "trustworthy" unless a diagnostic fails.

    There a diagnostic that is skipped decides nothing. What is saved is a `walkback.report/2` with its three words.
    """

    @staticmethod
    def of(report: Report) -> DiagnosticReport:
        """The same report under the published words."""
        return DiagnosticReport(**{f.name: getattr(report, f.name) for f in fields(report)})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "verdict", "walked back" if self.failed else "trustworthy")

    @property
    def verdict_line(self) -> str:
        """The published last line."""
        return f"VERDICT: needs walk-back: {', '.join(self.failed)}" if self.failed else "VERDICT: trustworthy"

    def to_dict(self) -> dict[str, Any]:
        """As any report: with the three words."""
        open_ = any(f["flagged"] is None for f in self.findings if f["title"] != "direction stability")
        word = "walked back" if self.failed else "undecided" if open_ else "passes"
        return {**super().to_dict(), "verdict": word}


# -- formatting -----------------------------------------------------------------------------------------------


def _number(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    if signed:
        return f"{value:+.3f}" if value == 0 or abs(value) >= 5e-4 else f"{value:+.1e}"
    return f"{value:.3g}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.2e}"


def _other_edition(note: Note) -> str:
    """What D2 of the other edition says, in as few words as a verdict line bears."""
    v = note.values
    if v["edition"] == "intrinsic":
        return f"the published D2 {'flags' if v['exact'] else 'passes'} (‖g_L‖ {v['g_norm']:.2g})"
    return f"the intrinsic D2 {'passes' if v['exact'] else 'flags'} (cosines off float64 by {v['error']:.1g})"


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
