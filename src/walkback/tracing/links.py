"""Do the blocks carry one stream from each to the next? Seen in the autograd graph of the first batch.

Site l is what block l writes. What the next block receives has to come from there and, past it, from no earlier site;
what goes past every site is a second stream, whose norms would not be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from walkback.errors import AnatomyError
from walkback.notes import Note
from walkback.tracing.derived import unseen_edge
from walkback.tracing.graph import goes_past_weights, is_residual

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture

NO_STREAM = "Expected blocks that add to a residual stream, but none adds to what it is given: they are plain layers."
Spot = tuple[Any, int]  # a node of the graph, and which of its results


def edges_of(tensors: Iterable[object]) -> list[GradientEdge]:
    """Return where the gradients of those tensors are taken that carry one."""
    return [unseen_edge(t) for t in tensors if isinstance(t, Tensor) and t.requires_grad]


def refuse_broken_links(capture: Capture) -> None:
    """Raise AnatomyError where a block does not continue what the one before it wrote.

    Where blocks return the branch, sums of one shape are compared by their numbers, and only the others are looked at
    here.
    """
    for i in range(capture.depth - 1):
        received = capture.streams.get(i + 1)
        if received is None:
            continue
        site, earlier = _spot(capture.edges[i + 1]), {_spot(capture.edges[j]): j for j in range(i + 1)}
        same = capture.made[i].shape == capture.given[i + 1].shape == capture.given[i].shape
        if capture.layout.branch and same:
            continue
        reached = _reached(_spot(received), {site, *earlier})
        block, following = capture.anatomy.called(i), capture.anatomy.called(i + 1)
        if site not in reached:
            raise AnatomyError(
                f"Expected {following} to receive what {block} wrote, but it does not depend on it: the blocks are no "
                "chain (parallel towers, or branches in one list). Name those of one stream, in its order: "
                "Anatomy.of(model, blocks=[…])."
            )
        past = sorted(earlier[spot] for spot in reached & earlier.keys())
        if past and not capture.layout.branch:
            raise AnatomyError(
                f"Expected {following} to receive the stream through {block} alone, but site {past[-1]} reaches it on "
                "a way past that block (a sum, a concatenation or a skip outside of the blocks). Name as blocks the "
                "modules that hold the whole step, or wrap it in one: Anatomy.of(model, blocks=[…])."
            )


def is_no_chain(capture: Capture, i: int) -> bool:
    """Return whether what block i + 1 receives does not depend on what block i returned."""
    received, site = capture.streams.get(i + 1), capture.edges.get(i + 1)
    return received is not None and site is not None and not _reached(_spot(received), {_spot(site)})


def is_plain_chain(capture: Capture) -> bool:
    """Return whether no block adds to what it is given: they are layers in a row, whatever else reads them."""
    if capture.layout.branch or capture.layout.received or capture.tape is not None:
        return False
    sites = [capture.edges[site].node for site in range(capture.depth + 1)]
    return not any(is_residual(made, given) for given, made in pairwise(sites))


def without_skips(capture: Capture) -> set[int]:
    """Return the blocks, by index, of types that add to nothing they are given, between others that do."""
    if capture.layout.branch or capture.layout.received or capture.tape is not None:
        return set()
    sites = [capture.edges[site].node for site in range(capture.depth + 1)]
    kinds = [type(block) for block in capture.anatomy.blocks]
    adds = [is_residual(made, given) for given, made in pairwise(sites)]
    lone = {kind for kind in kinds if not any(add for add, other in zip(adds, kinds) if other is kind)}
    found = {i for i, kind in enumerate(kinds) if kind in lone}
    inner = bool(found) and min(found) > 0 and max(found) < capture.depth - 1  # at an end they may begin a stage
    return found if inner and capture.depth - len(found) > 1 else set()


def are_layers(capture: Capture, logits: Tensor) -> bool:
    """Return whether the blocks are layers of several weights each: from the input to the answer, none with a skip.

    As layers of a Kolmogorov-Arnold network are, which add what two weights make. A skip with a weight of its own looks
    the same, but a residual network has a stem or a readout.
    """
    if capture.layout.branch or capture.layout.received or capture.tape is not None or capture.depth < 2:
        return False
    nodes = [capture.edges[site].node for site in range(capture.depth + 1)]
    skips = any(goes_past_weights([made], {given}) for given, made in pairwise(nodes))
    return capture.bare and nodes[-1] is logits.grad_fn and not skips


def refuse_second_ways(capture: Capture, losses: Tensor) -> None:
    """Raise AnatomyError where earlier sites reach blocks as a further argument, but for a stem that all are handed.

    So it is where norms, branches and sums stand in one list, or where what the first block made beside its state goes
    to all others. For blocks that return the new state; what the loss does not depend on is nothing of theirs.
    """
    used = _used(losses)
    ways: list[set[int]] = []
    made = {_spot(e) for edges in capture.beside_made.values() for e in edges}
    made -= {_spot(e) for e in (*capture.beside_given.get(0, ()), *capture.edges.values(), *capture.streams.values())}
    own = False  # whether what is handed over was made in a block
    for i in range(1, capture.depth):
        site, earlier = _spot(capture.edges[i]), {_spot(capture.edges[j]): j for j in range(i)}
        spots = [spot for e in capture.beside_given.get(i, ()) if (spot := _spot(e)) in used]
        ways.append({earlier[s] for spot in spots for s in _reached(spot, {site, *earlier}) if s in earlier})
        own = own or any(made & _reached(spot, made | {site, *earlier}) for spot in spots if ways[-1])
    if not any(ways) or (all(way == {0} for way in ways) and not own):
        return
    i = next((i for i, way in enumerate(ways, 1) if (way and way != {0}) or not all(ways)), 1)
    i = next(j for j, way in enumerate(ways, 1) if way) if not ways[i - 1] else i
    raise AnatomyError(
        f"Expected {capture.anatomy.called(i)} to receive the stream alone, but site {max(ways[i - 1])} reaches it "
        f"past {capture.anatomy.called(i - 1)} as another argument: the blocks are parts of a step, not steps of one "
        "stream, or hand on more than their state. Name as blocks the modules that hold the whole step, or wrap it in "
        "one: Anatomy.of(model, blocks=[…])."
    )


def refuse_several_streams(capture: Capture, losses: Tensor) -> None:
    """Raise AnatomyError where every block hands several tensors that depend on its input to the next one.

    What the loss does not depend on is no part of the stream, as where a further loss is summed up on the way.
    """
    used = _used(losses)
    if capture.depth < 2 or not all(_hands_over_more(capture, i, used) for i in range(capture.depth - 1)):
        return
    raise AnatomyError(
        f"Expected blocks that hand one tensor to the next, but {capture.anatomy.called(0)} returns several, "
        f"{capture.returned.get(0, '')}, and the next block takes up more than the first: the stream has several parts "
        "(as in reversible networks, or of image and text), and one of them would hide the others. Wrap the blocks so "
        "that they take and return one tensor, such as torch.cat of the parts."
    )


def _hands_over_more(capture: Capture, i: int, used: set[Spot]) -> bool:
    """Return whether block i + 1 receives, beside the stream, what block i made of its own input and is `used`."""
    received = capture.streams.get(i + 1)
    made, given = _spot(capture.edges[i + 1]), _spot(capture.streams.get(i, capture.edges[0]))
    stream = {made} if received is None else {made, _spot(received)}
    others = ({_spot(e) for e in capture.beside_made.get(i, ())} - stream) & used
    own = {spot for spot in others if given in _reached(spot, {given}) or _depends(capture, i, spot)}
    taken = [_spot(e) for e in capture.beside_given.get(i + 1, ())]
    return any(spot in own or own & _reached(spot, own | stream) for spot in taken if spot not in stream)


def _depends(capture: Capture, i: int, spot: Spot) -> bool:
    """Return whether a tensor that block i returned depends on any tensor that it was handed."""
    handed = {_spot(e) for e in capture.beside_given.get(i, ())}
    return bool(handed & _reached(spot, handed))


def find_receivers(capture: Capture) -> tuple[tuple[str, ...], int | None] | None:
    """Return the modules that are handed the stream before each block, where sites can be read there; else None.

    Beside them where the last site is: what the readout is handed (None), or else which of the tensors that were made
    after the last block.

    So it is where stream and branch are put together outside of the blocks by more than a sum (scales, a norm, an
    activation), or where a norm outside stands before each block: () where the blocks are handed the stream themselves,
    else those norms. What block l + 1 is handed has to come from what block l made and from what block l was handed, by
    the same operations at every block and before the readout.
    """
    depth, read, last = capture.depth, capture.read, capture.streams.get(capture.depth)
    if (
        depth < 2
        or capture.handed_copy
        or len({h.shape for h in (*capture.given.values(), *capture.made.values())}) > 1
    ):
        return None
    ends: list[tuple[Spot, int | None]] = [(_spot(edge), i) for i, edge in enumerate(capture.tail)]
    if last is not None and read is not None and read.shape == capture.given[0].shape:
        ends.insert(0, (_spot(last), None))
    handed = [_spot(capture.edges[0]), *(_spot(capture.streams[i]) for i in range(1, depth) if i in capture.streams)]
    if len(handed) < depth:
        return None
    for end, which in ends:
        if _is_one_step(capture, [*handed, end]):
            return (), which
    before = [_norm_below(capture, spot) for spot in handed]
    names = tuple(name for name, _ in filter(None, before))
    given = [spot for _, spot in filter(None, before)]
    steps = (which for end, which in ends if _is_one_step(capture, [*given, end]))
    return None if len(set(names)) < depth else next(((names, which) for which in steps), None)


def _norm_below(capture: Capture, spot: Spot) -> tuple[str, Spot] | None:
    """Return the module that made what a block is handed, and what that was given, or None.

    Past what has one input with a gradient, as A @ norm(h) in a graph network.
    """
    while spot not in capture.passed:
        below = [(child, nr) for child, nr in spot[0].next_functions if child is not None]
        if len(below) != 1:
            return None
        spot = below[0]
    return capture.passed[spot]


def _is_one_step(capture: Capture, sites: Sequence[Spot]) -> bool:
    """Return whether each site comes from the one before it and from its block, by the same operations every time.

    The same after every block of one type, of which there have to be two.
    """
    steps: dict[type, list[list[str]]] = {}  # of blocks of each kind: attention and MLP in turn may end differently
    for site in range(1, capture.depth + 1):
        made = _spot(capture.edges[site])
        stops = {made, *sites[:site]}
        if _reached(sites[site], stops) != {made, sites[site - 1]}:
            return False
        kind = type(capture.anatomy.blocks[site - 1])
        names = (node.name() for node in _nodes(sites[site], stops))
        steps.setdefault(kind, []).append(sorted(name for name in names if not name.startswith("Alias")))
    return all(len(alike) > 1 and all(step == alike[-1] for step in alike) for alike in steps.values())


def refuse_ways_past(capture: Capture, losses: Tensor) -> Note | None:
    """Raise AnatomyError where the loss depends on a site on a way past the next one; for sites that are received.

    Return a note where only the readout reads earlier sites, as one does that concatenates all states.
    """
    sites = [_spot(capture.edges[site]) for site in range(capture.depth + 1)]
    injected = capture.anatomy.steps is not None and capture.anatomy.steps.injected
    made = {e.node for edges in capture.beside_made.values() for e in edges}
    direct = {sites.index(spot) for spot in _reached((losses.grad_fn, 0), sites)}
    at_end = bool(made) and capture.tape is None and not made & {*_nodes((losses.grad_fn, 0), {*sites})}
    for site in range(2 if injected else 1, capture.depth + 1):
        if at_end and site - 1 in direct:
            continue
        if sites[site - 1] in _reached((losses.grad_fn, 0), {sites[site], sites[site - 1]}):
            raise AnatomyError(
                f"Expected {capture.anatomy.called(site - 1)} to return the residual branch f or the new state h + f, "
                "or to be handed the stream itself, but the stream goes past what it is handed (a norm before it, "
                "outside?). Name blocks that include it, or wrap them: Anatomy.of(model, blocks=[…])."
            )
    earlier = sorted(direct - {capture.depth})
    return Note("read-past", capture.depth, {"sites": earlier}) if at_end and earlier else None


def read_past(capture: Capture, losses: Tensor) -> Note | None:
    """Look at what the readout reads beside the last site: a sum with an earlier one is refused, others are said.

    For blocks that return the new state.
    """
    last = _spot(capture.edges[capture.depth])
    earlier = {_spot(capture.edges[j]): j for j in range(capture.depth)}
    if losses.grad_fn is None or last in earlier:
        return None
    sums: list[int] = []
    for node in _nodes((losses.grad_fn, 0), {last, *earlier}):
        below = [(child, nr) for child, nr in node.next_functions if child is not None]
        if node.name().startswith("AddBackward") and last in below:
            sums += [earlier[spot] for spot in below if spot in earlier]
    if sums:
        raise AnatomyError(
            f"Expected {capture.anatomy.called(capture.depth - 1)} to return the new state, as the blocks before it "
            f"seem to, but it is added to site {sums[0]} afterwards: several blocks make one step of the stream. Name "
            "as blocks the modules that hold the whole step, or wrap it in one: Anatomy.of(model, blocks=[…])."
        )
    reached = _reached((losses.grad_fn, 0), {last, *earlier}) & earlier.keys()
    if not reached:
        return None
    return Note("read-past", capture.depth, {"sites": sorted(earlier[spot] for spot in reached)})


def _spot(edge: GradientEdge) -> Spot:
    return edge.node, edge.output_nr


def _reached(start: Spot, stops: set[Spot] | Iterable[Spot]) -> set[Spot]:
    """Return which of `stops` lie below `start`, on ways that pass no other of them."""
    stops = set(stops)
    if start in stops:
        return {start}
    found: set[Spot] = set()
    for node in _nodes(start, stops):
        found |= {(child, nr) for child, nr in node.next_functions if (child, nr) in stops}
    return found


def _used(losses: Tensor) -> set[Spot]:
    """Return every place of the graph that the losses depend on."""
    top = [] if losses.grad_fn is None else _nodes((losses.grad_fn, 0), set())
    return {(child, nr) for node in top for child, nr in node.next_functions}


def _nodes(start: Spot, stops: set[Spot]) -> list[Any]:
    """Return the nodes from `start` down to `stops`."""
    seen: set[Any] = {start[0]}
    todo, nodes = [start[0]], []
    while todo:
        node = todo.pop()
        nodes.append(node)
        for child, nr in node.next_functions:
            if child is not None and child not in seen and (child, nr) not in stops:
                seen.add(child)
                todo.append(child)
    return nodes
