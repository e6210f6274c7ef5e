"""Numbers as a reader sees them. What was not measured is a dash, never a number."""

from __future__ import annotations

from math import isinf, log10

NONE = "–"
NOT_MEASURED = "not measured"  # the reason of what nobody asked for
_KINDS = {"acc": "z.3f", "cos": "+z.3f", "pp": "+z.1f", "int": "z.0f"}


def number(value: float, kind: str) -> str:
    """Return a number the way its kind is read: acc, cos, norm, pp, int.

    >>> number(0.3064, "acc"), number(0.0996, "cos"), number(4.23e8, "norm"), number(-4.3, "pp")
    ('0.306', '+0.100', '4.2e8', '-4.3')
    >>> number(999.4, "norm"), number(-999.7, "norm"), number(1000.4, "norm")
    ('999', '-1000', '1000')
    """
    value += 0.0  # of −0.0 nothing is left
    if isinf(value):
        return "∞" if value > 0 else "-∞"
    if kind in _KINDS:
        return format(value, _KINDS[kind])
    if value == 0 or -1.5 <= log10(abs(value)) < 4:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def figure(value: float | None, form: str = "number") -> str:
    """Return a number of a report in its form of `quantities.py`: "number", "signed" or "share".

    >>> figure(0.0123), figure(123456.0), figure(0.1, "signed"), figure(1e-5, "signed"), figure(0.5, "share")
    ('0.0123', '1.23e+05', '+0.100', '+1.0e-05', '50%')
    """
    if value is None:
        return NONE
    value += 0.0  # of −0.0 nothing is left
    if form == "share":
        return f"{value:z.0%}"
    if form == "signed":
        return f"{value:+z.3f}" if value == 0 or abs(value) >= 5e-4 else f"{value:+.1e}"
    return f"{value:.3g}" if value == 0 or 1e-2 <= abs(value) < 1e4 else f"{value:.2e}"
