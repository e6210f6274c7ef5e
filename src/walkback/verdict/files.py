"""Tables of settings read from and written to files."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self

from walkback.errors import FormatError, InputError
from walkback.files import parse_json, read_file, write_whole


def read_table(path: str | Path) -> object:
    """Read a JSON or TOML file as plain values, with errors that name the file."""
    path = Path(path)
    what = f"Expected {path} to be readable as {path.suffix or 'JSON'}, but"
    try:
        text = read_file(path).decode("utf-8-sig")
        return tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
    except FileNotFoundError:
        raise FormatError(f"Expected a file at {path}, but there is none.") from None
    except RecursionError as error:
        raise FormatError(f"{what} it is nested too deep: {error}.") from None
    except (OSError, ValueError) as error:  # of decoding, of JSON, of TOML
        raise FormatError(f"{what}: {error}.") from None


class Stored:
    """A dataclass of settings that can be kept in a file."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON or TOML file with any of the fields."""
        return cls.of(read_table(path), str(path))

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` and `--thresholds` read."""
        table: Any = self
        try:
            write_whole(path, json.dumps(asdict(table), indent=2) + "\n")
        except OSError as error:
            raise FormatError(f"Expected to write thresholds to {path}, but: {error.strerror}.") from None

    @classmethod
    def of(cls, table: object, where: str = "thresholds") -> Self:
        """Make one from a mapping with any of the fields."""
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        if not isinstance(table, dict) or set(table) - set(known):
            raise InputError(
                f"Expected {where} to hold any of {', '.join(known)}, but got "
                f"{', '.join(map(str, table)) if isinstance(table, dict) else type(table).__name__}."
            )
        return cls(**table)
