"""Copies the records of finished runs from a store into evidence/runs: no weights, no images.

    python scripts/collect.py STORE [--out evidence/runs] [--blas "MKL with its Intel kernels"]

A record that is there already is left alone; one of the same run that differs is named, and nothing is written over it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from walkback.audit.records import FILES, run_folders
from walkback.files import write_together

ROOT = Path(__file__).resolve().parent.parent
MACHINE = "machine.json"


def collect(store: Path, out: Path, blas: str | None) -> tuple[list[str], list[str]]:
    """Copy what is finished and not there yet; return the names copied, and those that differ from what is there."""
    copied, differ = [], []
    for folder in run_folders(store):
        if not all((folder / name).is_file() for name in FILES):
            continue
        texts = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
        there = out / folder.name
        if there.exists():
            # What is said of the machine is this script's own.
            same = all((there / name).read_text(encoding="utf-8") == texts[name] for name in FILES if name != MACHINE)
            differ += [] if same else [folder.name]
            continue
        if blas:
            texts[MACHINE] = json.dumps({**json.loads(texts[MACHINE]), "blas": blas}, indent=2) + "\n"
        there.mkdir(parents=True)
        write_together(there, {name: text.encode() for name, text in texts.items()})
        copied.append(folder.name)
    return copied, differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "evidence" / "runs")
    parser.add_argument("--blas", help="what to note of torch's matrix library, where it was told to use other kernels")
    args = parser.parse_args()
    copied, differ = collect(args.store, args.out, args.blas)
    left = [f"differs, left alone: {name}" for name in differ]
    print("\n".join([f"{len(copied)} copied to {args.out}", *copied, *left]))


if __name__ == "__main__":
    main()
