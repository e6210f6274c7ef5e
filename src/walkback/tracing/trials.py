"""Candidates for the blocks, tried on a batch where what was guessed can't be read: nothing is offered untried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from walkback.errors import AnatomyError, WalkbackError, cut
from walkback.network.anatomy import Anatomy, Layers, layers_of
from walkback.network.batch import Inputs
from walkback.network.stacks import BY_ORDER, around, candidates, keyword_of
from walkback.network.values import modules_of

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer

LIMIT = 16  # candidates that are tried
# What is said of readings that hold only in part: none of these is taken unasked.
DOUBTS = frozenset(("read-past", "unseen-sum"))


@dataclass(frozen=True)
class Reading:
    """Blocks that a batch could be read at."""

    paths: tuple[str, ...]
    anatomy: Anatomy
    modules: frozenset[int]  # ids of the blocks and of all that is in them


def read_otherwise(tracer: Tracer, error: AnatomyError, x: Inputs, y: Tensor) -> Anatomy:
    """Try every candidate for the blocks on a batch, and return the reading that holds all others.

    Raises:
        AnatomyError: there is none, or several: `error` with what was tried, and only lines that can be written.
    """
    first, tried = tracer.anatomy, {tuple(dict.fromkeys(n.partition("#")[0] for n in _names(tracer.anatomy)))}
    failed: list[str] = []
    readings: list[Reading] = []
    for paths in candidates(tracer.model)[:LIMIT]:
        if paths in tried:
            continue
        tried.add(paths)
        try:
            stem, readout = around(tracer.model, paths[0], paths[-1])
            tracer.take(Anatomy(stem, paths, readout, guesses=(BY_ORDER,)).resolve(tracer.model))
            tracer.read(x, y)
        except WalkbackError as why:
            failed.append(f"{keyword_of(paths)}: {cut(str(why), 200)}")
            continue
        calls = len(tracer.blocks)
        if calls < 2 and len(paths) == 1:
            failed.append(f"{keyword_of(paths)}: one block, called once")
        elif any(note.code in DOUBTS for note in tracer.notes):
            failed.append(f"{keyword_of(paths)}: the readout reads past it")
        else:
            inside = frozenset(id(m) for block in tracer.blocks for m in modules_of(block))
            readings.append(Reading(paths, tracer.anatomy, inside))
    whole = [r for r in readings if all(other.modules <= r.modules for other in readings)]
    if whole:
        line = f"Anatomy.of(model, blocks={keyword_of(whole[0].paths)})"
        said = f"the blocks are what one batch could be read at, of all candidates. To name them: {line}"
        return replace(whole[0].anatomy, guesses=(said,))
    layers = _layers_read(tracer, x, y)
    tracer.take(first)
    raise _told(error, readings, failed, layers) from None


def _names(anatomy: Anatomy) -> tuple[str, ...]:
    start = len(anatomy.stems)
    return () if isinstance(anatomy, Layers) else anatomy.names[start : start + len(anatomy.blocks)]


def _layers_read(tracer: Tracer, x: Inputs, y: Tensor) -> bool:
    """Return whether the outputs of all layers can be sites."""
    try:
        tracer.take(layers_of(tracer.model))
        tracer.read(x, y)
    except WalkbackError:
        return False
    return True


def _told(error: AnatomyError, readings: list[Reading], failed: list[str], layers: bool) -> AnatomyError:
    """Return the error with what was tried on the batch, and the lines that worked."""
    lines = [str(error)]
    if readings:
        lines.append("Tried on the first batch, these can be read, each by itself, and none holds the others:")
        lines += [f"  anatomy = walkback.Anatomy.of(model, blocks={keyword_of(r.paths)})" for r in readings]
    if failed:
        lines.append("Tried on the first batch, these can't be read:")
        lines += [f"  {text}" for text in failed[:5]]
        lines += [f"  and {len(failed) - 5} more"] if len(failed) > 5 else []
    if layers:
        lines.append('The outputs of its layers can be read: walkback.diagnose(model, batches, sites="layers").')
    told = AnatomyError("\n".join(lines))
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told
