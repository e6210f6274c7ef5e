"""A sample of the corpus (`make corpus`): networks built by hand and of transformers, against norms by hand."""

from __future__ import annotations

import sys

import pytest

from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "corpus"))

import hand_built
import of_transformers
from case import Case, run

READ = {
    *("plain branches", "widths", "a projection between", "state and weights", "five of seven", "all but the first"),
    *("(B, C, T), last", "(B, C, T), mean", "tokens merge", "ReZero outside", "DeepNet", "pre-norm outside", "nViT"),
    *("a graph in a cache", "lists of lists", "a stack of one beside a run"),
    *("T5ForConditionalGeneration", "XLNetLMHeadModel", "CLIPForImageClassification", "CvtForImageClassification"),
}
REFUSED = {
    *("a scale between widths", "dense blocks", "parallel towers", "h + down(up(h)) in one list"),
    *("h + down(up(h)) once", "reversible (a, b)", "joint image and text", "U-net"),
}
CASES = [case for module in (hand_built, of_transformers) for case in module.cases() if case.name in READ | REFUSED]


def test_every_name_of_the_sample_is_in_the_corpus() -> None:
    assert {case.name for case in CASES} == READ | REFUSED


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_networks_are_read_right_or_refused_clearly(case: Case) -> None:
    outcome = run(case)
    assert outcome.kind == ("right" if case.name in READ else "refused clearly"), outcome.why
