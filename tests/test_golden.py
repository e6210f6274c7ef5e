"""Every record under results/ is judged as it was when it was made: numbers, flags, failed checks, in all editions."""

import json

import pytest

import golden

KNOWN = json.loads(golden.GOLDEN.read_text(encoding="utf-8"))


def test_no_record_is_left_out():
    assert sorted(KNOWN) == [str(path.relative_to(golden.ROOT)) for path in golden.records()]


@pytest.mark.parametrize("edition", golden.EDITIONS)
@pytest.mark.parametrize("frozen", golden.FROZEN)
def test_every_record_is_judged_as_before(edition, frozen):
    for name, known in KNOWN.items():
        assert golden.judged(golden.ROOT / name, edition, frozen) == known[f"{edition}, frozen {frozen}"], name
