"""A report in a real notebook: what the kernel hands to the page is the card, its Markdown and its text."""

from __future__ import annotations

import nbformat
import pytest

from notebooks import executed

CELLS = [
    "import walkback as wb",
    "wb.diagnose(wb.selftest.exploded(), wb.selftest.batches(2), 0.31, 0.35, method_name='<script>alert(1)</script>')",
]


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> dict:
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    done = executed(nbformat.v4.new_notebook(cells=cells), tmp_path_factory.mktemp("notebook"))
    (shown,) = done.cells[-1].outputs
    assert shown.output_type == "execute_result"
    return shown.data


def test_a_notebook_gets_all_three_forms(output: dict) -> None:
    assert set(output) == {"text/html", "text/markdown", "text/plain"}
    assert output["text/plain"].splitlines()[0] == "VERDICT: walked back: D1, D2, D3"
    assert "walked back: D1, D2, D3" in output["text/markdown"]


def test_the_card_is_drawn_and_runs_nothing(output: dict) -> None:
    card = output["text/html"]
    assert "walked back: D1, D2, D3" in card
    assert card.count("<svg") >= 2, "‖h‖ and ‖g‖ by site"
    assert "<script" not in card
    assert "&lt;script&gt;alert(1)" in card
    assert "http" not in card.replace("http://www.w3.org/2000/svg", "")
