"""A report for the Hugging Face Hub: a section of a model card, an entry of `.eval_results`. Nothing is uploaded."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from walkback.errors import InputError, shown
from walkback.report.markdown import escape, grid
from walkback.report.view import answers, conditions_line, finding_rows

if TYPE_CHECKING:
    from walkback.report.report import Report


def section(report: Report) -> str:
    """Return Markdown: the verdict, the three answers, every check, under what it was measured, and what it means."""
    head, rows = finding_rows(report)
    lines = ["## Does the alignment number mean anything?", "", f"**{escape(report.verdict_line)}**", ""]
    lines += [f"- {escape(question)}: {escape(word)}" for question, word in answers(report)]
    lines += ["", grid(head, rows)]
    measured = conditions_line(report)
    lines += ["", *([escape(measured) + ".", ""] if measured else [])]
    lines += [
        f"Measured by Walkback, {report.edition} edition. Passing means that the audited failures are absent, not that "
        "the learning rule replaces backpropagation."
    ]
    return "\n".join(lines) + "\n"


def eval_results(report: Report, dataset: str, task: str = "default", *, source: str = "", date: str = "") -> str:
    """Return the YAML of a file under `.eval_results/` in a model repository: the claimed accuracy with its verdict.

    Args:
        report: of the model; its `headline_acc` is the value, the mean where there are several seeds.
        dataset: the id of the benchmark's data set on the Hub, such as "uoft-cs/cifar10".
        task: the id of the task in that data set.
        source: a link to the report or to the log of the evaluation.
        date: of the evaluation, as ISO 8601; the Hub takes that of the commit by default.

    >>> import walkback as wb
    >>> numbers = {"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}, "headline_acc": 0.31}
    >>> print(eval_results(wb.judge(numbers), "uoft-cs/cifar10"))
    - dataset:
        id: "uoft-cs/cifar10"
        task_id: "default"
      value: 0.31
      notes: "Walkback, three-check edition: walked back: D1, D2"
    <BLANKLINE>
    """
    accuracy = report.headline_acc
    if accuracy is None:
        raise InputError("Expected a report with a headline accuracy, which is the value of an entry, but it has none.")
    if not isinstance(dataset, str) or dataset.count("/") != 1:
        raise InputError(f"Expected the data set's id on the Hub, such as uoft-cs/cifar10, but got {shown(dataset)}.")
    value = sum(accuracy) / len(accuracy) if isinstance(accuracy, list) else float(accuracy)
    note = f"Walkback, {report.edition} edition: {report.verdict_line.removeprefix('VERDICT: ')}"
    lines = ["- dataset:", f"    id: {_quoted(dataset)}", f"    task_id: {_quoted(task)}", f"  value: {float(value)}"]
    lines += [f"  date: {_quoted(date)}"] if date else []
    lines += ["  source:", f"    url: {_quoted(source)}", '    name: "Walkback report"'] if source else []
    return "\n".join([*lines, f"  notes: {_quoted(note)}"]) + "\n"


# What YAML takes for the end of a line or for no text at all; half a pair of surrogates is none anywhere.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _quoted(text: Any) -> str:
    whole = str(text).encode("utf-8", "replace").decode()
    written = json.dumps(whole, ensure_ascii=False)  # a JSON string is a YAML string, but for what is written out here
    return _NOT_YAML.sub(lambda one: f"\\u{ord(one[0]):04x}", written)
