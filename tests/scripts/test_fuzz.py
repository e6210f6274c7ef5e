"""A few hundred of the damaged files of `make torture`, and those that once were an internal error, hung or grew."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuzz

SHARE = {"record": 8, "bundle": 8, "entry": 10}  # of what takes longer


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_damaged_file_is_read_or_refused_by_name(target: str, tmp_path: Path) -> None:
    said = [(number, fuzz.one(target, number, tmp_path)) for number in range(SHARE.get(target, 40))]
    assert not [one for one in said if one[1].startswith("failed")]


# Number of an input -> what it ended in before.
ONCE = {
    "report:9": "bad operand type for abs(): 'str'",
    "report:21": "'int' object is not iterable",
    "report:42": "list index out of range",
    "report:74": "'<' not supported between instances of 'float' and 'list'",
    "report:80": "cannot convert float infinity to integer",
    "report:93": "'>=' not supported between instances of 'str' and 'float'",
    "report:196": "KeyError: 'scale stability'",
    "report:208": "an error with control characters",
    "report:267": "Out of range float values are not JSON compliant: nan",
    "report:2781": "invalid literal for int() with base 10: ''",
    "record:1145": "surrogates not allowed",
    "paper:900000": "unsupported operand type(s) for /: 'float' and 'list'",
    "report:501720": "'NoneType' object is not iterable",
    "history:950069": "more than 100 levels",
    "history:950226": "unsupported operand type(s) for +: 'int' and 'str'",
    "pickle:1937": "840 MiB for places of objects that are not there",
    "thresholds:39": "an error with control characters",
}


@pytest.mark.parametrize("name", ONCE)
def test_what_once_failed(name: str, tmp_path: Path) -> None:
    target, _, number = name.partition(":")
    assert not fuzz.one(target, int(number), tmp_path).startswith("failed")


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_what_is_not_damaged_is_read(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are refused for what they are made of would test nothing."""
    monkeypatch.setattr(fuzz, "mutated", lambda value, draw: value)
    monkeypatch.setattr(fuzz, "broken", lambda data, draw: data)
    monkeypatch.setattr(fuzz, "VALUES", [1])
    assert "read" in {fuzz.one(target, number, tmp_path) for number in range(4 if target == "record" else 12)}


def test_a_reader_that_hangs_grows_or_breaks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer itself is shown to fail."""

    def hangs(*_: object) -> None:
        while True:
            pass

    def grows(*_: object) -> None:
        bytearray(2 * fuzz.BYTES)

    def breaks(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    said = []
    for target in (hangs, grows, breaks):
        monkeypatch.setitem(fuzz.TARGETS, "judge", (target, 1))
        said.append(fuzz.one("judge", 0, tmp_path))
    assert [text.split(":")[1].strip() for text in said] == ["TooLong", "MemoryError", "KeyError"]
