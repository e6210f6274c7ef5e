"""`walkback anatomy module:function`: the picture of a network, and of what one batch of it shows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import walkback as wb
from places import ROOT
from walkback import cli
from walkback.tracing.picture import picture

CODE = """
import torch
from torch import nn
import walkback as wb

print("chatter of the user's own code")


class Step(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, h):
        return h + torch.tanh(self.inner(h))


class Net(nn.Module):
    def __init__(self, depth=3, names=("layers",)):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 8), nn.Linear(8, 5)
        for name in names:
            setattr(self, name, nn.ModuleList(Step() for _ in range(depth)))
        self.names = names

    def forward(self, x):
        h = self.enter(x)
        for name in self.names:
            for step in getattr(self, name):
                h = step(h)
        return self.leave(h.mean(1))


def batches():
    return [(torch.randn(6, 7, 4), torch.randint(5, (6,)))]


def model():
    return Net()


def deep():
    return Net(96)


def pair():
    return Net(), batches()


def keywords():
    return {"model": Net(names=("left", "right")), "anatomy": {"blocks": "left.*"}, "headline_acc": 0.5}


def two():
    return nn.ModuleDict({"left": Net(), "right": Net()})


def number():
    return 3


def no_model():
    return {"batches": batches()}


def empty():
    return Net(), []
"""


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"pictured_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def test_a_model_is_shown_without_being_run(entries: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["anatomy", f"{entries}:model"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "Net: 4 sites, h_0 … h_3",
        "",
        "stem     enter     Linear",
        "stem     leave     Linear  writes h_0",
        "block 1  layers.0  Step    writes h_1",
        "block 2  layers.1  Step    writes h_2",
        "block 3  layers.2  Step    writes h_3",
        "blocks hold 72% of the weights; the rest: enter, leave",
        "guessed: stem and readout are what is registered before and after the blocks (no number depends on them)",
    ]
    assert "chatter" in err


def test_with_batches_one_is_run_and_shows_what_registration_did_not(
    entries: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["anatomy", f"{entries}:pair"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Net: 4 sites, h_0 … h_3",
        "",
        "stem     enter     Linear  writes h_0",
        "block 1  layers.0  Step    writes h_1",
        "block 2  layers.1  Step    writes h_2",
        "block 3  layers.2  Step    writes h_3",
        "readout  leave     Linear  reads h_3",
        "blocks hold 72% of the weights; the rest: enter, leave",
        "",
        "blocks return  the new state h + f",
        "states         (7, 8)",
        "norms          averaged over tokens",
        "loss           cross-entropy",
    ]


def test_as_json_every_block_is_there(entries: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["anatomy", f"{entries}:deep", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["sites"], found["run"]) == ("Net", 97, None)
    blocks = [part for part in found["parts"] if part["role"].startswith("block ")]
    assert blocks[95] == {"role": "block 96", "path": "layers.95", "type": "Step"}
    assert len(blocks) == 96
    assert cli.run(["anatomy", f"{entries}:pair", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert run == {"state_shapes": [[7, 8]] * 4, "blocks_return": "state", "pool": "mean", "loss": "cross-entropy"}


def test_arguments_of_diagnose_are_used(entries: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["anatomy", f"{entries}:keywords"]) == 0
    assert "block 3  left.2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            "two",
            [
                "ModuleDict has 2 stacks of 3, and nothing tells which",
                "Candidates for the blocks: left.layers (3 x Step), right.layers (3 x Step).",
                "With a batch every candidate is tried.",
            ],
        ),
        ("number", ["Expected model to be a torch.nn.Module, but got int"]),
        ("no_model", ["Expected", "to return a model, (model, batches) or a dict with model, but got", "with batches"]),
        ("empty", ["Expected at least one batch"]),
        ("nothing_there", ["to have 'nothing_there'"]),
    ],
)
def test_what_can_not_be_shown_is_told_in_words(
    entries: str, capsys: pytest.CaptureFixture[str], entry: str, words: list[str]
) -> None:
    assert cli.run(["anatomy", f"{entries}:{entry}"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "Traceback" not in err
    for text in words:
        assert text in err


def test_diagnose_takes_a_chunk(entries: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for chunk in ([], ["--chunk", "4"]):
        assert cli.run(["diagnose", f"{entries}:pair", "--json", *chunk]) in (0, 3)
        found.append(json.loads(capsys.readouterr().out))
    assert [report["conditions"]["chunk"] for report in found] == [None, 4]
    assert found[1]["conditions"]["batch_size"] == 6
    assert cli.run(["diagnose", f"{entries}:pair", "--chunk", "0"]) == 2
    assert "Expected chunk to be a whole number >= 1, but got 0" in capsys.readouterr().err


def test_the_docs_show_the_picture_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/custom-networks.md").read_text(encoding="utf-8")
    code, shown = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "text"))
    exec(compile(code, "docs/custom-networks.md", "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out == shown


def test_looking_leaves_no_trace() -> None:
    model = wb.selftest.network(depth=2).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    picture(model, eval_batches=wb.selftest.batches(1))
    assert model.training
    assert all(m.training for m in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
