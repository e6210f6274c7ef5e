"""`walkback doctor`."""

from __future__ import annotations

from walkback.cli.options import Flag, Root
from walkback.cli.output import answer


def doctor(*, root: Root = None, json: Flag = False) -> int:
    """Check this installation: versions, devices, data sets, and the measurement itself against closed forms.

    Args:
        json: Print the findings as JSON.
    """
    from walkback.calibration.doctor import examine

    found = examine(root)
    answer(found, json)
    return 0 if found.ok else 1
