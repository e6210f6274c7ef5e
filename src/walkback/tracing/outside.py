"""Residual steps before the first block and after the last one: what a list that is read alone leaves out.

Seen in the graph of a pass: modules that add to what they are given, and sums of a state and what weights make of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from walkback.errors import WalkbackError
from walkback.network.anatomy import Anatomy
from walkback.network.batch import Inputs
from walkback.network.stacks import BY_ORDER, around, keyword_of
from walkback.network.values import modules_of, named_modules_of, parameters_of
from walkback.notes import Note
from walkback.tracing.graph import between, goes_past_weights, is_sum, nodes_between
from walkback.tracing.inner import DOUBTS, Heard, hear, may_be_step
from walkback.tracing.sums import adds

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture
    from walkback.tracing.session import Tracer

STEPS_OUTSIDE = "steps-outside"
_MOST = 5_000  # nodes outside of the sites that are looked at


def steps_outside(session: Tracer, capture: Capture, logits: Tensor, x: Inputs) -> Note | None:
    """Return a note that names the residual steps before the first site and after the last one; None where none are."""
    written_out = bool(session.anatomy.sums) and session.anatomy.steps is None  # a chain that holds every such sum
    if written_out or capture.tape is not None or logits.grad_fn is None:
        return None
    below, last = between([capture.edges[0].node], ()), capture.edges[capture.depth].node
    above = nodes_between(logits.grad_fn, last)
    if len(below) + len(above) > _MOST:
        return None
    if not any(map(_joins, below)) and not any(_joins(node, {*above, last}) for node in above):
        return None  # nearly every network: the pass below is spared
    blocks = session.anatomy.depth_modules(session.model)
    own = {id(m) for block in blocks for m in modules_of(block)}
    others = [m for _, m in named_modules_of(session.model) if id(m) not in own]
    others = [m for m in others if not own & {id(inner) for inner in modules_of(m)}]  # not what holds the blocks
    steps = [m for m in others if may_be_step(m)]
    weighted = [m for m in others if any(p.ndim > 1 for p in parameters_of(m))]
    heard = hear(session, steps, (*weighted, *blocks), x)
    calls = sorted((run for run in heard.runs if id(run.module) in own), key=lambda run: run.begun)
    if not calls or heard.top is None or calls[-1].made is None:
        return None
    first, last = calls[0].given, calls[-1].made
    below, above = set() if first is None else between([first], ()), nodes_between(heard.top, last)
    found = {
        "before": _named(heard, below, below),
        "after": _named(heard, above, {*above, last}),
    }
    return Note(STEPS_OUTSIDE, None, found) if any(found.values()) else None


def with_line(session: Tracer, x: Inputs, y: Tensor) -> None:
    """Put into the note the blocks that were tried and read as one stream, where the steps are all modules."""
    said = next((note for note in session.notes if note.code == STEPS_OUTSIDE), None)
    if said is None or session.anatomy.sums:
        return
    reading, notes, kept = session.reading, [*session.notes], session.anatomy
    own = tuple(dict.fromkeys(name.partition("#")[0] for name in session.reading.block_names))
    paths = (*said.values["before"], *own, *said.values["after"])
    try:
        stem, readout = around(session.model, paths)
        session.take(Anatomy(stem, paths, readout, kept.pool, guesses=(BY_ORDER,)).resolve(session.model))
        session.read(x, y)
        works = not any(note.code in DOUBTS or note.code == STEPS_OUTSIDE for note in session.notes)
    except WalkbackError:
        works = False
    session.learn(**vars(reading))
    line = f"Anatomy.of(model, blocks={keyword_of(paths)})" if works else ""
    session.notes[:] = [replace(n, values={**n.values, "line": line}) if n is said else n for n in notes]
    session.attach()


def _named(heard: Heard, made_in: set[Any], given_in: set[Any]) -> list[str]:
    """Return the modules of the steps that end and begin at these nodes; of sums without one, the last layer added.

    One sum alone is none: a positional convolution is written so. Nor is one module of two branches that no skip
    passes: these may be two layers side by side.
    """
    steps = [run for run in heard.steps if run.made in made_in and run.given in given_in]
    inside = {node for step in steps for node in nodes_between(step.made, step.given)}
    sums: list[tuple[int, str]] = []
    for node in filter(_may_join, made_in - inside):
        parts = [(child, nr) for child, nr in node.next_functions if child is not None]
        for state, branch in (parts, parts[::-1]):
            if state[0] in given_in and adds(branch, state):
                way = nodes_between(branch[0], state[0])
                layers = [(run.begun, run.path) for run in heard.runs if run.made in way]
                sums += [max(layers)] if layers else []
    found = sorted([*((step.begun, step.path) for step in steps), *sums])
    whole = len(found) > 1 or any(goes_past_weights([step.made], {step.given}) for step in steps)
    return list(dict.fromkeys(path for _, path in found)) if whole else []


def _joins(node: Any, reading: Collection[Any] = ()) -> bool:
    """Return whether a node is a sum of two things that were computed from the same, or that are among `reading`."""
    if not _may_join(node):
        return False
    parts = [child for child, _ in node.next_functions]
    if reading:
        return all(child in reading for child in parts)
    shared = between(parts[:1], ()) & between(parts[1:], ())
    return any(not hasattr(child, "variable") for child in shared)


def _may_join(node: Any) -> bool:
    """Return whether a node is a sum of two things that were computed."""
    made = [child for child, _ in node.next_functions if child is not None and not hasattr(child, "variable")]
    return is_sum(node) and len(made) == 2
