"""`walkback audit`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Literal

from walkback.cli.options import Device, Flag, Root, Whole, json_object
from walkback.cli.output import answer, stdout_to_stderr
from walkback.errors import InputError


def audit(
    plan: str | None = None,
    *,
    executor: Literal["local", "ray", "slurm"] = "local",
    workers: Whole | None = None,
    root: Root = None,
    out: Path = Path("runs"),
    retries: Whole = 1,
    threads: Whole = 1,
    device: Device = "cpu",
    depth: Whole | None = None,
    address: str | None = None,
    options: str = "{}",
    list: Flag = False,
    json: Flag = False,
) -> int:
    """Train what is missing of a plan, many runs at a time; goes on where it was stopped. Exit 1 if runs failed.

    Args:
        plan: A plan by name (see --list), or a .toml file of your own.
        executor: local: processes on this machine; ray: a Ray cluster; slurm: a Slurm cluster.
        workers: How many runs at a time; as many as there is room for by default.
        out: The store of runs; several audits may share it.
        retries: How often a run whose worker died is tried again.
        threads: Of each worker.
        depth: Also measure what the trained blocks of each run that is trained now are worth, on at most so many
            samples of a split, and keep it in its record.
        address: Of the Ray cluster; without it one is started on this machine.
        options: Keywords of the executor, as JSON: '{"partition": "short"}' of Slurm.
        list: Only list the plans (or the one given): runs, how many of them are finished in --out, and what they cost
            on this machine, from a calibration of about ten seconds.
        json: Print the outcome, or the list, as JSON.
    """
    from walkback.audit import audit as audited
    from walkback.audit import names
    from walkback.audit import plan as find
    from walkback.audit.cost import Listing

    if list:
        with stdout_to_stderr():
            listing = Listing.of([find(name) for name in ([plan] if plan else names())], out, root)
        answer(listing, json)
        return 0
    if plan is None:
        raise InputError(f"Expected a plan ({', '.join(names())}) or a .toml file, but got none. --list tells of each.")
    if address is not None and executor != "ray":
        raise InputError(f"Expected --address only with --executor ray, but the executor is {executor}.")
    more = json_object("--options", options)
    if own := [key for key in more if key in signature(audited).parameters]:
        raise InputError(
            f"Expected --options to have keywords of the executor, but {own[0]} is one of the audit's own: "
            + (f"give it as --{own[0]}." if own[0] in signature(audit).parameters else "leave it out.")
        )
    if address is not None:
        more["address"] = address
    with stdout_to_stderr():
        outcome = audited(
            plan,
            out,
            executor,
            workers,
            root=root,
            retries=retries,
            threads=threads,
            device=device,
            depth=depth,
            **more,
        )
    answer(outcome, json)
    return 1 if outcome.failed else 0
