"""Candidates for the blocks, tried on a batch where what was guessed can't be read: nothing is offered untried."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, WalkbackError, cut
from walkback.network.anatomy import Anatomy, Layers, layers_of
from walkback.network.batch import Inputs, mapped
from walkback.network.stacks import BY_ORDER, around, candidates, keyword_of
from walkback.network.values import children_of, modules_of, named_modules_of
from walkback.tracing.calls import overheard
from walkback.tracing.inner import DOUBTS
from walkback.tracing.outside import STEPS_OUTSIDE
from walkback.tracing.steps import find_steps, met
from walkback.tracing.sums import find_sums

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer

Paths = tuple[str, ...]
LIMIT = 16  # candidates that are tried


@dataclass(frozen=True)
class Candidate:
    """Blocks that a batch could be read at."""

    paths: tuple[str, ...]
    anatomy: Anatomy
    modules: frozenset[int]  # ids of the blocks and of all that is in them
    reader: str  # the part that is handed the last site; "" if none is named
    attends: bool  # its blocks are handed the states of an encoder


def read_otherwise(tracer: Tracer, error: AnatomyError, x: Inputs, y: Tensor) -> Anatomy:
    """Try every candidate for the blocks on a batch, and return the reading that holds all others.

    Raises:
        AnatomyError: there is none, or several: `error` with what was tried, and only lines that can be written.
    """
    first, tried = tracer.anatomy, {tuple(dict.fromkeys(n.partition("#")[0] for n in _names(tracer.anatomy)))}
    failed: list[str] = []
    readings: list[Candidate] = []
    for paths in candidates(tracer.model)[:LIMIT]:
        if paths in tried:
            continue
        tried.add(paths)
        try:
            stem, readout = _around(tracer.model, paths)
            tracer.take(Anatomy(stem, paths, readout, guesses=(BY_ORDER,)).resolve(tracer.model))
            tracer.read(x, y)
        except WalkbackError as why:
            several = len(paths) > 1 or len(tracer.blocks) > 1
            failed += [f"{keyword_of(paths)}: {cut(str(why), 160)}"] if several else []
            continue
        if len(tracer.blocks) < 2:  # one block, called once: a network may have many such modules
            continue
        if any(note.code in DOUBTS for note in tracer.notes):
            failed.append(f"{keyword_of(paths)}: the readout reads past it")
        else:
            inside = frozenset(id(m) for block in tracer.blocks for m in modules_of(block))
            readings.append(Candidate(paths, tracer.anatomy, inside, tracer.reading.reader, not tracer.layout.masked))
    whole = [r for r in readings if all(other.modules <= r.modules for other in readings)]
    readings = [r for r in readings if not any(r.modules < other.modules for other in readings)]
    decoders = [r for r in readings if r.attends]
    if not whole and len(decoders) == 1:  # its encoder is another stream, which it reads beside its own
        return _taken(tracer, decoders[0], x, y, "the decoder that attends to another stack, which is not measured")
    beyond = _beyond(tracer, whole[0], x) if whole else ""
    if whole and not beyond:
        return _taken(tracer, whole[0], x, y, "what one batch could be read at, of all candidates")
    if whole:
        failed.append(
            f"{keyword_of(whole[0].paths)}: these alone are not the whole stream, {beyond} run before or after"
        )
    if (by_sums := _read_at_sums(tracer, x, y)) is not None:
        return by_sums
    if (by_steps := _read_at_steps(tracer, first, x, y)) is not None:
        return by_steps
    apart = _unlike(readings) if not whole else []
    ways = {(a.paths, b.paths): _met(tracer, a, b, x, y) for a, b in permutations(apart[:3], 2)}
    for reading in apart if len(apart) < 4 else ():
        others = [other for other in apart if other is not reading]
        if others and all(ways[other.paths, reading.paths] == "attends" for other in others):
            return _taken(tracer, reading, x, y, "the decoder that reads another stack, which is not measured")
    error = _said(error, ways)
    lines = (
        []
        if {"apart", "follows", "turns"} & {*ways.values()}
        else [line for r in apart if (line := _line(tracer, r, x, y)) and not _is_part(tracer)]
    )
    layers = _layers_read(tracer, x, y)
    tracer.take(first)
    raise _with_tried(error, lines, failed, layers) from None


def _is_part(tracer: Tracer) -> bool:
    """Return whether steps of the stream run before or after the sites that were read last."""
    return any(note.code == STEPS_OUTSIDE for note in tracer.notes)


def _met(tracer: Tracer, first: Candidate, second: Candidate, x: Inputs, y: Tensor) -> str:
    """Return how a stack meets one before it, see `steps.met`."""
    tracer.take(Anatomy(None, (*first.paths, *second.paths)).resolve(tracer.model))
    one, two = ([tracer.model.get_submodule(path) for path in r.paths] for r in (first, second))
    return met(tracer, one, two, x, y)


def _said(error: AnatomyError, ways: dict[tuple[Paths, Paths], str]) -> AnatomyError:
    """Return the error, with how two stacks meet where they are no one stream."""
    for (first, second), way in ways.items():
        one, two, what = keyword_of(first), keyword_of(second), ""
        if way == "apart":
            what = (
                f"{one} and {two} stand side by side: neither stack reads the other, and the norms of one say nothing "
                "of the other. Measure each in a network of its own."
            )
        if way == "follows":
            what = (
                f"{two} follow {one}, with weights between that are in no block and keep the shape: is it one stream, "
                "or are these two? Name the blocks of both, in order, to read them as one, with no step for what is "
                "between; or wrap that in a block of its own."
            )
        if what:
            return AnatomyError(f"{error}\n{what}")
    return error


def _read_at_steps(tracer: Tracer, first: Anatomy, x: Inputs, y: Tensor) -> Anatomy | None:
    """Return the reading at states between blocks that holds all others of this kind; None where there is none."""
    readings: list[Candidate] = []
    tries = [] if isinstance(first, Layers) else [first]
    for paths in candidates(tracer.model)[:LIMIT]:
        stem, readout = _around(tracer.model, paths)
        tries.append(Anatomy(stem, paths, readout, guesses=(BY_ORDER,)).resolve(tracer.model))
    for anatomy in tries:
        try:
            tracer.take(anatomy)
            found = find_steps(tracer, x, y)
            if found is None or found.steps is None or found.steps.gaps:  # whether these are one stream is not to guess
                continue
            tracer.take(found)
            tracer.read(x, y)
        except WalkbackError:
            continue
        paths = tuple(dict.fromkeys(n.partition("#")[0] for n in _names(anatomy)))
        inside = frozenset(id(m) for block in found.steps.modules for m in modules_of(block))
        readings.append(Candidate(paths, found, inside, "", False))
    whole = [r for r in readings if all(other.modules <= r.modules for other in readings)]
    if not whole or _beyond(tracer, whole[0], x):
        return None
    guess = f"the blocks are {keyword_of(whole[0].paths)}, and their steps are made outside of them"
    return replace(whole[0].anatomy, guesses=(guess,))


def _read_at_sums(tracer: Tracer, x: Inputs, y: Tensor) -> Anatomy | None:
    """Return the stream as a chain of sums, once it has been read so; None where it can't be."""
    try:
        if (anatomy := find_sums(tracer, x)) is None:
            return None
        tracer.take(anatomy)
        tracer.read(x, y)
    except WalkbackError:
        return None
    return anatomy


def _unlike(readings: list[Candidate]) -> list[Candidate]:
    """Return the readings but those at the same place in several steps of a list: each is a part of a step alone."""
    places = [tuple(re.sub(r"\d+", "*", path) for path in reading.paths) for reading in readings]
    return [reading for reading, place in zip(readings, places) if places.count(place) == 1]


def _names(anatomy: Anatomy) -> tuple[str, ...]:
    start = len(anatomy.stems)
    return () if isinstance(anatomy, Layers) else anatomy.names[start : start + len(anatomy.blocks)]


def _taken(tracer: Tracer, reading: Candidate, x: Inputs, y: Tensor, what: str) -> Anatomy:
    """Return the anatomy of a reading, with what was guessed, and the line that names it."""
    line = _line(tracer, reading, x, y)
    guess = f"the blocks are {what}" + f". To name them: {line}" * bool(line)
    return replace(reading.anatomy, guesses=(guess, BY_ORDER))


def _line(tracer: Tracer, reading: Candidate, x: Inputs, y: Tensor) -> str:
    """Return the line that names the blocks of a reading, once it has been tried; "" where it reads nothing."""
    readout = (reading.reader,) if reading.reader else ()
    try:
        tracer.take(Anatomy.of(tracer.model, blocks=list(reading.paths), readout=readout))
        tracer.read(x, y)
    except WalkbackError:
        return ""
    named = f', readout="{reading.reader}"' if readout else ""
    return f"Anatomy.of(model, blocks={keyword_of(reading.paths)}{named})"


def _around(model: nn.Module, paths: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is registered before and after these blocks; what shares a list with the last ends its step."""
    stem, readout = around(model, paths)
    lists = {path.rpartition(".")[0] for path in paths}
    own = f"{paths[-1].rpartition('.')[0]}."
    return stem, tuple(p for p in readout if len(lists) < len(paths) or len(paths) == 1 or not p.startswith(own))


def _beyond(tracer: Tracer, reading: Candidate, x: Inputs) -> str:
    """Return a candidate for blocks that runs before or after those of a reading, and not between them; "" if none."""
    paths = {id(m): path for path, m in named_modules_of(tracer.model)}
    rivals = [rival for rival in candidates(tracer.model) if len(rival) > 1]
    every = {path: tracer.model.get_submodule(path) for rival in rivals for path in rival}
    ran: list[str] = []
    blocks = list({id(b): b for b in reading.anatomy.blocks if isinstance(b, nn.Module)}.values())
    with torch.no_grad(), overheard((*every.values(), *blocks), lambda m, _: ran.append(paths[id(m)])):
        tracer.run_once(mapped(x, torch.clone), None)
    own = [i for i, path in enumerate(ran) if path in {paths[id(b)] for b in blocks}]
    for rival in rivals:
        calls = [i for i, path in enumerate(ran) if path in rival and id(every[path]) not in reading.modules]
        ends = bool(calls) and calls[0] < own[0] and own[-1] < calls[-1]
        if ends and not any(child for path in rival for child in children_of(every[path])):
            continue  # the layers of stem and readout, in one list
        if calls and not any(own[0] < i < own[-1] for i in calls):
            return keyword_of(rival)
    return ""


def _layers_read(tracer: Tracer, x: Inputs, y: Tensor) -> bool:
    """Return whether the outputs of all layers can be sites."""
    try:
        tracer.take(layers_of(tracer.model))
        tracer.read(x, y)
    except WalkbackError:
        return False
    return True


def _with_tried(error: AnatomyError, readings: list[str], failed: list[str], layers: bool) -> AnatomyError:
    """Return the error with what was tried on the batch, and the lines that worked."""
    lines = [str(error)]
    if readings:
        lines.append("Tried on the first batch, these can be read, each by itself, and none holds the others:")
        lines += [f"  anatomy = walkback.{line}" for line in readings]
    if failed:
        lines.append("Tried on the first batch, these can't be read:")
        lines += [f"  {text}" for text in failed[:3]]
        lines += [f"  and {len(failed) - 3} more"] if len(failed) > 3 else []
    if layers:
        lines.append('The outputs of its layers can be read: walkback.diagnose(model, batches, sites="layers").')
    full = AnatomyError("\n".join(lines))
    for note in getattr(error, "__notes__", ()):
        full.add_note(note)
    return full
