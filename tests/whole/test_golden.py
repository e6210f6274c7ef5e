"""Records, networks and commands give what they gave when the golden files were made: numbers, flags, notes, texts."""

import json
from typing import Any

import pytest

import golden


def known(name: str) -> dict[str, Any]:
    return json.loads((golden.GOLDEN.parent / name).read_text(encoding="utf-8"))


KNOWN, MEASURED, CLI = known("records.json"), known("measured.json"), known("cli.json")


def differences(was: Any, now: Any, where: str = "") -> list[str]:
    """Where two answers differ by more than another processor's rounding."""
    if isinstance(was, dict) and isinstance(now, dict):
        return [d for key in sorted({*was, *now}) for d in differences(was.get(key), now.get(key), f"{where}.{key}")]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [d for i, (a, b) in enumerate(zip(was, now)) for d in differences(a, b, f"{where}[{i}]")]
    number = isinstance(was, float) and isinstance(now, (int, float)) and not isinstance(now, bool)
    return (
        [] if was == now or (number and now == pytest.approx(was, rel=1e-3, abs=1e-6)) else [f"{where}: {was}, {now}"]
    )


def test_no_record_is_left_out():
    assert sorted(KNOWN) == [str(path.relative_to(golden.ROOT)) for path in golden.records()]


@pytest.mark.parametrize("edition", golden.EDITIONS)
@pytest.mark.parametrize("frozen", golden.FROZEN)
def test_every_record_is_judged_as_before(edition, frozen):
    for name, known in KNOWN.items():
        assert golden.judged(golden.ROOT / name, edition, frozen) == known[f"{edition}, frozen {frozen}"], name


def test_no_network_is_left_out():
    assert list(MEASURED) == [name for name, _ in golden.networks()]


def test_every_network_is_measured_as_before():
    found = {name: differences(MEASURED[name], golden.said(measure, name)) for name, measure in golden.networks()}
    assert {name: there for name, there in found.items() if there} == {}


@pytest.mark.parametrize("command", CLI)
def test_every_command_answers_as_before(command: str):
    now = golden.answered(command.split())
    for answer in (CLI[command], now):
        answer.get("json", {}).get("conditions", {}).pop("torch", None)
        for name in golden.ROUNDING:
            answer.get("json", {}).get("values", {}).pop(name, None)
    assert differences(CLI[command], now) == []
