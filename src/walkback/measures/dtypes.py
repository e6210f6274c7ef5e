"""Floating point types by name, as reports and logs spell them: what each can hold, without torch."""

from __future__ import annotations

# The smallest positive number of each type, its smallest subnormal where it has subnormals.
SMALLEST = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float8_e5m2": 2.0**-16,
    "float8_e5m2fnuz": 2.0**-17,
    "float8_e4m3fn": 2.0**-9,
    "float8_e4m3fnuz": 2.0**-10,
}
_ALSO = {"double": "float64", "float": "float32", "half": "float16"}


def dtype_name(dtype: object) -> str:
    """Return a type's name, "float32" of torch.float32; what is no type is returned as its text.

    >>> dtype_name("torch.half"), dtype_name("bfloat16"), dtype_name("int8") in SMALLEST
    ('float16', 'bfloat16', False)
    """
    name = str(dtype).removeprefix("torch.")
    return _ALSO.get(name, name)
