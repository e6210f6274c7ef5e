"""Check a pull request to the public record: `python scripts/check_submission.py BASE [registry]`.

Between BASE and HEAD it may add entries to the folder and touch nothing else; every entry must hold.
Exit 0: it may be merged; 1: what is printed must be mended first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from walkback.errors import WalkbackError
from walkback.replication.public_record import read_entry


def changed(base: str) -> list[tuple[str, str]]:
    """Return (A, M or D, path) of every file that differs from where the branch left BASE."""
    command = ["git", "diff", "--name-status", "--no-renames", f"{base}...HEAD"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(line.split("\t")[0], line.split("\t")[1]) for line in lines]


def problems(files: list[tuple[str, str]], folder: str) -> list[str]:
    """Return what is wrong with a submission, in words."""
    found = []
    for how, name in files:
        path = Path(name)
        if path.parent != Path(folder):
            found.append(f"{name}: Expected a submission to touch files of {folder}/ only. Send other changes apart.")
        elif how != "A":
            found.append(
                f"{name}: Expected new entries only, but this one was {'deleted' if how == 'D' else 'changed'}."
            )
        elif path.is_symlink():
            found.append(f"{name}: Expected an entry to be a file, but it is a link.")
        else:
            try:
                read_entry(path)
            except WalkbackError as error:
                found.append(f"{name}: {error}")
    return found or ([] if files else ["Expected at least one new entry, but nothing differs."])


if __name__ == "__main__":
    wrong = problems(changed(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "registry")
    print("\n".join(wrong) or "every entry holds")
    sys.exit(1 if wrong else 0)
