"""The report of a diagnosis: its fields, and thin methods that hand it to the writers. Nothing is computed here."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from walkback.errors import FormatError
from walkback.files import write_whole
from walkback.measures.over_sites import reads_as
from walkback.notes import Note
from walkback.report import view
from walkback.report.depth_view import deciding
from walkback.report.formats.report_2 import SCHEMA, read_report
from walkback.report.formats.sums import check_file
from walkback.report.latex import report_latex, tex
from walkback.report.markdown import report_markdown
from walkback.report.text import details_text, report_text
from walkback.verdict.claim import OUTCOME
from walkback.verdict.files import read_table

__all__ = ["SCHEMA", "DiagnosticReport", "Report", "tex"]


@dataclass(frozen=True, repr=False)
class Report:
    """A diagnosis: the numbers, the findings, the verdict, and why; many fields, since it is all that is kept of one.

    Args:
        verdict: "passes", "walked back" or "undecided".
        failed: the checks that walk the claim back, such as ("D1", "D2").
        measurement_valid: is the reference valid by the edition's own check? True, False, or None (not tested).
        clamped_readable: can the cosine be read as scripts compute it, with ε = 1e-8, in this dtype?
        unclamped_exact: is the cosine without a clamp the one that float64 gives? None where that was not asked; where
            `credit_exact` is None, it was asked of the gradient alone.
        credit_exact: does float64 give the credit the same cosines? None where it was not asked; `reasons` says why.
        depth_used: do trained blocks beat frozen ones? True, False, or None (not tested).
        nonfinite, altered, doubted: what is wrong with the reference itself, as data.
        notes: everything else that is to be said, as Notes; `advisories` has them as sentences.
        depth: what `walkback.depth` measured, as plain values; None where it was not asked.
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
    credit_exact: bool | None = None
    nonfinite: tuple[dict[str, Any], ...] = ()
    altered: dict[str, Any] | None = None
    doubted: dict[str, Any] | None = None
    headline_acc: float | list[float] | None = None
    frozen_baseline_acc: float | list[float] | None = None
    bp_acc: float | list[float] | None = None
    aggregates: dict[str, float | None] = field(default_factory=dict)
    controls: dict[str, list[float | None]] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    depth: dict[str, Any] | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", "" if self.method is None else str(self.method))

    # -- for people --------------------------------------------------------------------------------------------

    @property
    def verdict_line(self) -> str:
        """The last line: the verdict, what decides it or would, what flags beside it, and where editions differ."""
        return view.verdict_line(self)

    @property
    def advisories(self) -> tuple[str, ...]:
        """The notes as sentences, but for what the user wrote."""
        return tuple(note.text for note in self.notes if note.code != "remark")

    @property
    def remark(self) -> str:
        """What the user wrote under `notes`."""
        return view.remark(self)

    def answers(self) -> list[tuple[str, str]]:
        """Return the questions every report answers, with yes, no, not tested, undecided; and the sub-mode, if any."""
        return view.answers(self)

    def reads_as(self, site: int) -> str | None:
        """Return "signal" where the cosine and its interval lie outside the null band of the site, else "noise".

        None where there is no band.
        """
        names = ("cosine", "null_low", "null_high", "cosine_low", "cosine_high")
        cosine, low, high, *interval = ((self.per_layer.get(name) or {site: None})[site] for name in names)
        return reads_as(cosine, low, high, (interval[0], interval[1]))

    def __str__(self) -> str:
        return report_text(self)

    def __repr__(self) -> str:
        line = " ".join(self.verdict_line.removeprefix("VERDICT: ").split())
        return f"<{type(self).__name__} {f'{self.method}: ' if self.method else ''}{line} ({self.edition})>"

    def details(self) -> str:
        """Return everything that was measured as text: every column, probes, float64, orders of averaging, checks."""
        return details_text(self)

    def __hash__(self) -> int:
        return hash((self.edition, self.verdict, self.failed, self.method, frozenset(self.values.items())))

    def assert_passes(self, *require: str) -> Report:
        """Return the report where it passes; else raise an AssertionError that sets every check beside its limit.

        With checks named, `assert_passes("D1", "D2")`, those must be tested and not flag, and others may be untested.
        """
        from walkback.report.gate import difference

        __tracebackhide__ = True
        wrong = difference(self, require)
        if wrong:
            raise AssertionError(wrong)
        return self

    def to_markdown(self) -> str:
        """Return the report as GitHub Markdown."""
        return report_markdown(self)

    def to_latex(self) -> str:
        """Return booktabs tables with the thresholds in the caption, ready to be put into a paper."""
        return report_latex(self)

    def to_html(self) -> str:
        """Return the report as one HTML file without scripts or network, its per-layer figures drawn inside."""
        from walkback.report.html import document  # jinja2 is loaded by those who need it

        return document(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        from walkback.report.html import card

        return card(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return all forms at once: a notebook shows the richest it knows, and keeps the others for where it goes."""
        return {"text/plain": str(self), "text/markdown": self.to_markdown(), "text/html": self._repr_html_()}

    def to_model_card(self) -> str:
        """Return a section for the model card of a network, in Markdown."""
        from walkback.report.model_card import section

        return section(self)

    # -- for programs ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the shape of schema `walkback.report/2`."""
        return copy.deepcopy(self.shared_dict())

    def shared_dict(self) -> dict[str, Any]:
        """Return `to_dict` without copies, to be read only: what is changed in it changes the report."""
        order = ("schema", "method", "edition", "verdict", "failed", "measurement_valid", "clamped_readable",
                 "unclamped_exact", "credit_exact", "depth_used", "submode", "nonfinite", "altered",
                 "doubted")  # fmt: skip
        flat = {f.name: getattr(self, f.name) for f in fields(self)}
        flat |= {name: list(flat[name]) for name in ("failed", "chain", "findings", "nonfinite")}
        flat["notes"] = [note.to_dict() for note in self.notes]
        return {**{k: flat.pop(k) for k in order}, **flat}

    def to_json(self) -> str:
        """Return `to_dict` as JSON; what was not measured is null, never NaN."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_pandas(self) -> Any:
        """Return the numbers per site as a pandas DataFrame, one row per site; what was not measured there is NaN."""
        from walkback.report.frame import frame

        return frame(self)

    def save(self, path: str | Path) -> Path:
        """Write the JSON, all of it or nothing."""
        try:
            return write_whole(path, self.to_json() + "\n")
        except OSError as error:
            raise FormatError(f"Expected to write the report to {path}, but: {error}.") from None

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read what `save` wrote; in the folder of a run, only what the run wrote."""
        report = cls.from_dict(read_table(path), str(path))
        check_file(Path(path))
        return report

    @classmethod
    def from_dict(cls, data: object, where: str = "the report") -> Report:
        """Return the report that `to_dict` gave; one of `walkback.report/1` is read too."""
        return cls(**read_report(data, where))


class DiagnosticReport(Report):
    """A report in the words and the logic of the published README: "trustworthy" unless a diagnostic fails.

    There a diagnostic that is skipped decides nothing. What is saved is a `walkback.report/2` with its three words.
    """

    @staticmethod
    def of(report: Report) -> DiagnosticReport:
        """Return the same report under the published words."""
        return DiagnosticReport(**{f.name: getattr(report, f.name) for f in fields(report)})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "verdict", "walked back" if self._published else "trustworthy")

    def __str__(self) -> str:
        return details_text(self)

    @property
    def _published(self) -> list[str]:
        """The diagnostics of the README that fail; D3-outcome, which it does not have, is shown and decides nothing."""
        return [check for check in self.failed if check != OUTCOME]

    @property
    def verdict_line(self) -> str:
        """The published last line."""
        failed = self._published
        return f"VERDICT: needs walk-back: {', '.join(failed)}" if failed else "VERDICT: trustworthy"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values as any report does: with the three words."""
        open_ = any(f["flagged"] is None for f in deciding(self))
        word = "walked back" if self.failed else "undecided" if open_ else "passes"
        return {**super().to_dict(), "verdict": word}
