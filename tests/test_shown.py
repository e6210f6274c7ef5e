"""What the user handed in is quoted on one line, whatever it is; and errors all over the package do so."""

from __future__ import annotations

import ast
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import walkback as wb
from walkback import rules
from walkback.data import Dataset, Split
from walkback.errors import cut, shown

SOURCES = Path(wb.__file__).parent


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class NoText:
    def __repr__(self) -> str:
        return 3  # type: ignore[return-value]


class ManyLines:
    def __repr__(self) -> str:
        return "first\n   second\r\nthird\x0bfourth\u2028fifth"


class Shapely:
    """Looks like an array until one looks closer."""

    @property
    def shape(self):
        raise ValueError("not yet loaded")


HUGE = [
    list(range(10**6)),
    tuple(f"name {i}" for i in range(10**5)),
    {f"layer {i}": torch.zeros(100, 100) for i in range(1000)},
    OrderedDict((f"layer {i}", torch.zeros(10)) for i in range(1000)),
    torch.randn(300, 300),
    np.zeros((300, 300)),
    [torch.randn(300, 300)] * 300,
    "x" * 10**6,
    b"x" * 10**6,
    nn.Sequential(*(nn.Linear(3, 3) for _ in range(300))),
    set(range(10**5)),
    Broken(),
    [Broken()],
    {"a": Broken()},
    NoText(),
    ManyLines(),
    Shapely(),
    10**5000,
    RuntimeError("line\n" * 1000),
]


@pytest.mark.parametrize("value", HUGE, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("width", [80, 20])
def test_anything_is_one_short_line(value: object, width: int) -> None:
    text = shown(value, width)
    assert 0 < len(text) <= width
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "Tensor of shape (2, 3), torch.float32"),
        (torch.zeros(4, dtype=torch.int64, device="meta"), "Tensor of shape (4,), torch.int64"),
        (nn.Parameter(torch.zeros(2)), "Parameter of shape (2,), torch.float32"),
        (np.zeros((2, 3), dtype=np.float16), "ndarray of shape (2, 3), float16"),
        (torch.tensor(0.5), "tensor(0.5000)"),
        (np.float64(0.5), repr(np.float64(0.5))),
        ([torch.zeros(2), 1], "[Tensor of shape (2,), torch.float32, 1]"),
        ({"w": torch.zeros(2)}, "{'w': Tensor of shape (2,), torch.float32}"),
        (OrderedDict(w=torch.zeros(2)), "OrderedDict({'w': Tensor of shape (2,), torch.float32})"),
        (Broken(), "<Broken, which can't be printed>"),
        (ManyLines(), "first second third fourth fifth"),
        (ValueError("what it says"), "what it says"),
        ("a  b\n", r"'a  b\n'"),
        ((), "()"), ((1,), "(1,)"), ([], "[]"), ({}, "{}"), (None, "None"), (float("nan"), "nan"),
        ("x" * 78, repr("x" * 78)),
        ("x" * 79, "'" + "x" * 78 + "…"),
    ],
)  # fmt: skip
def test_what_is_said(value: object, text: str) -> None:
    assert shown(value) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_values_are_their_repr_where_it_fits(value: object) -> None:
    whole = repr(value)
    assert shown(value) == (whole if len(whole) <= 80 else f"{whole[:79]}…")


def test_a_list_that_holds_itself_ends() -> None:
    loop: list = []
    loop.append(loop)
    assert len(shown(loop)) <= 80


def test_text_is_cut_as_values_are() -> None:
    assert cut("short") == "short"
    assert cut("a\n\n  b") == "a  b"
    assert cut("x" * 81) == "x" * 79 + "…"


# -- in messages ---------------------------------------------------------------------------------------------------


def data() -> Dataset:
    split = Split(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))
    return Dataset("data", split, split, 2)


LONG = "x" * 5000
NETWORK = wb.selftest.network()
STATE = NETWORK.state_dict() | {f"more.{i}": torch.zeros(3, 3) for i in range(500)}
NAMES = {f"name {i}": 1 for i in range(5000)}


def pair() -> list:
    return wb.selftest.batches(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: STATE),
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: [STATE] * 2),
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: list(range(5000))),
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: LONG),
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: model),
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: 0.5, seed=STATE),
        lambda: wb.frozen_baseline(wb.selftest.network, lambda model: 0.5, seed=[1] * 5000),
        lambda: wb.RunSpec(seed=list(range(5000))),
        lambda: wb.RunSpec(**{LONG: 1}),
        lambda: wb.RunSpec(net_options=STATE),
        lambda: rules.make(LONG),
        lambda: rules.make("dfa", scale=STATE),
        lambda: rules.make("dfa", fresh=STATE),
        lambda: rules.make("dfa", target=LONG),
        lambda: rules.make("dfa", **{LONG: 1}),
        lambda: rules.make("ep", steps=STATE),
        lambda: rules.make("state-bridge", form=LONG),
        lambda: rules.rule.of_length([], STATE),
        lambda: wb.certify(STATE, NETWORK),
        lambda: wb.certify(wb.rules.DFA(), STATE),
        lambda: wb.nets.build(LONG, (3,), 2),
        lambda: wb.data.load(LONG),
        lambda: wb.data.load(STATE),
        lambda: wb.nets.build(STATE, (3,), 2),
        lambda: rules.make(STATE),
        lambda: wb.data.load("teacher", LONG),
        lambda: wb.data.load(f"{LONG}:y"),
        lambda: wb.Tracer(NETWORK, anatomy=list(STATE)),
        lambda: wb.Tracer(NETWORK, anatomy=NAMES),
        lambda: wb.Tracer(NETWORK, reference=STATE),
        lambda: wb.diagnose(NETWORK, [NAMES]),
        lambda: wb.diagnose(NETWORK, [(NAMES, torch.zeros(3).long())]),
        lambda: wb.Watch(NETWORK, pair(), every=LONG),
        lambda: wb.Watch(NETWORK, pair(), max_overhead=STATE),
        lambda: (wb.pitfalls.run("negative-norm"), wb.pitfalls.run(LONG)),
        lambda: wb.audit.plan(LONG),
        lambda: wb.train(wb.RunSpec(data="mine:data"), data=data(), device=LONG),
    ],
)  # fmt: skip
def test_errors_stay_short_whatever_is_handed_in(call) -> None:
    with pytest.raises(wb.WalkbackError) as info:
        call()
    text = str(info.value)
    assert len(text) < 1000
    assert max(map(len, text.splitlines())) < 700
    assert len(text.splitlines()) < 10


def test_a_control_that_returns_several_accuracies_is_not_its_first() -> None:
    with pytest.raises(
        wb.InputError, match=r"Expected train\(model\) to return the test accuracy .* got \[0\.1, 0\.9\]"
    ):
        wb.frozen_baseline(wb.selftest.network, lambda model: [0.1, 0.9])


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), torch.tensor(0.5), np.array([0.5]), [0.5], Fraction(1, 2), (0.5, {"epochs": 3})]
)
def test_what_is_one_number_is_still_an_accuracy(value: object) -> None:
    def train(model: nn.Module) -> object:
        with torch.no_grad():
            model.embed.weight.add_(1)
        return value

    assert wb.frozen_baseline(wb.selftest.network, train).accuracy == 0.5


def test_weights_that_do_not_fit_are_not_all_listed(tmp_path: Path) -> None:
    shallow, deep = ({"net": "resmlp", "net_options": {"depth": d}, "input_shape": [3], "classes": 2} for d in (1, 12))
    net = wb.nets.build("resmlp", (3,), 2, depth=1)
    bundle = wb.save_bundle(tmp_path, net, {**deep, "rule": "dfa"})
    with pytest.raises(wb.FormatError, match=r"to fit resmlp, but: Error\(s\) in loading state_dict.*…\.$") as info:
        bundle.model()
    assert len(str(info.value)) < 600
    assert wb.save_bundle(tmp_path, net, shallow).model() is not None


# Names, paths and keys that are known to be short, and what prints no value of the user's.
SHORT = ("LABELS", "name", "keys[i]", "found[0]", "str(path)", "path.name", "accuracy")


def test_no_error_quotes_a_value_in_full() -> None:
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
                quoted = ast.unparse(node.value)
                assert quoted in SHORT, f"{path.relative_to(SOURCES)}:{node.lineno} quotes {quoted}: use shown()"
