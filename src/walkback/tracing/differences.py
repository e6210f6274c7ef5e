"""Finite differences of a network from its sites: probes, what they predict, and whether they can be read.

A probe is one sample, one site and one direction. The reference predicts ⟨g_l, direction⟩; the network is run a step to
either side of where it stands. A probe that rounding or a kink drowns is left out, and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from walkback.network.values import widened
from walkback.tracing.trace import Trace

SEED = 0
ROWS = 32  # samples in one pass
OUTLIERS = 1  # probe may be off: two kinks that were crossed can hide each other
DOUBT = 10  # times the noise: an error below it accuses nobody
LONGEST = 1e-2  # step, as a share of ‖h_l‖
PLATEAU = 100  # times ε: a shorter step may change nothing in a layer that rounds
# A smaller gradient underflows on its way through float32, which networks compute parts in whatever their own type is
FAINT = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps

Rung = tuple[float, float]  # limit, step as a share of ‖h_l‖
# (limit, step), the next where rounding drowns the one before. The step is a share of ‖h_l‖. In float64 the rounding of
# the reference (float32) is what is left; in float32, that of the logits. The coarse ones are for layers that round.
FINE: dict[torch.dtype, tuple[Rung, ...]] = {
    torch.float64: ((1e-4, 1e-7), (1e-3, 1e-4)),
    torch.float32: ((1e-2, 1e-3),),
}
LADDERS: dict[torch.dtype, tuple[Rung, ...]] = {
    torch.float64: (*FINE[torch.float64], (1e-2, 1e-3), (5e-2, 1e-2)),
    torch.float32: (*FINE[torch.float32], (5e-2, 1e-3), (5e-2, 1e-2)),
}
APART = {torch.float64: 1e-2, torch.float32: 1e-1}  # how far beside the batch nothing is tied, a share of ‖h_l‖

Run = Callable[[Tensor, Mapping[int, Tensor]], Tensor]  # rows of the batch, what is added at sites -> what comes out
Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # that, before, rows -> change of loss, what rounds


@dataclass(frozen=True)
class Reading:
    """What probes say of the reference."""

    answer: Literal["agrees", "altered", "unread"]  # "agrees", "altered", or "unread" where too few could be read
    cause: str = ""  # of "unread": "nonfinite", "flat", "rounding", "casts" or "kinks"
    # |change − prediction| in units of the prediction to be expected: the largest but one of all probes
    error: float = 0.0
    limit: float = 0.0  # above this it is altered
    sites: tuple[int, ...] = ()  # those where half of the probes are above the limit, or some where none has so many
    samples: int = 0  # how many were read
    bent: bool = False  # whether a probe of a site that disagrees saw a kink
    errors: Mapping[int, float] = field(default_factory=dict)  # of every probe that was read, by its number
    narrowest: torch.dtype | None = None  # the type that the network rounds to, where that is the cause


@dataclass(frozen=True)
class _Pass:
    """Some probes that are run together: (P,) rows of the batch, their sites, directions, predictions and units."""

    rows: Int[Tensor, " probes"]
    sites: Int[Tensor, " probes"]
    ways: dict[int, Tensor]
    predicted: Float[Tensor, " probes"]
    unit: Float[Tensor, " probes"]
    least: Float[Tensor, " probes"]  # what the reference can't tell from zero
    finest: Float[Tensor, " probes"]  # the step at which rounding and curvature are about equal
    before: Tensor  # what comes out with no site moved


@dataclass(frozen=True)
class Probed:
    """(P,) numbers of probes, on the CPU: the slope found and predicted, the difference of the slopes to both sides,
    what rounding may add, and the size to be expected. `least` is what the reference can't tell from zero.
    """

    slope: Float[Tensor, " probes"]
    predicted: Float[Tensor, " probes"]
    bend: Float[Tensor, " probes"]
    rounding: Float[Tensor, " probes"]
    unit: Float[Tensor, " probes"]
    least: Float[Tensor, " probes"]

    def errors(self) -> tuple[Float[Tensor, " probes"], Float[Tensor, " probes"], Bool[Tensor, " probes"]]:
        """Return (error, noise, whether a probe can say anything), the first two in units of the expected slope."""
        rounds = torch.maximum(self.rounding, self.least)
        noise = torch.maximum(self.bend.abs(), rounds)
        finite = torch.isfinite(self.slope) & torch.isfinite(self.predicted) & torch.isfinite(noise)
        still = torch.maximum(self.slope.abs(), self.bend.abs()) <= DOUBT * rounds
        nothing = (self.unit <= self.least) & still  # zero, and said to be zero
        unit = torch.maximum(self.unit, self.slope.abs())
        unit = torch.where(unit > 0, unit, 1.0)
        return (self.slope - self.predicted).abs() / unit, noise / unit, finite & ~nothing

    def less_curved(self, far: Probed) -> Probed:
        """Return the same without what `far`, of twice the step, shows to be no kink: a curve bends twice as much."""
        kink, drift = 2 * self.bend - far.bend, self.slope - far.slope
        return replace(self, bend=torch.maximum(kink.abs(), drift.abs()))

    def as_bent(self, far: Probed, read: Mapping[int, float]) -> bool:
        """Return whether those not `read` are at kinks: bent as much at twice the step (noise half, a curve twice)."""
        ratios = far.bend.abs() / self.bend.abs()
        ratios = ratios[[i for i in range(len(ratios)) if i not in read and ratios[i].isfinite()]]
        return bool(len(ratios)) and 0.75 < float(ratios.quantile(0.5)) < 1.5


NUMBERS = tuple(f.name for f in fields(Probed))


def read(
    run: Run,
    change: Change,
    point: Trace,
    dtype: torch.dtype,
    ladder: Sequence[Rung],
    narrowest: Callable[[Tensor], torch.dtype],
    through_kinks: bool = True,
) -> Reading:
    """Return what the probes of one trace say, on the first rung of the ladder where they can be read.

    Args:
        run: the network from moved sites, in `dtype`.
        change: what a change of that is to the loss, per row, and the size of the numbers that round in it.
        point: states, gradients and inputs.
        dtype: what `run` computes in.
        ladder: (limit, step), the finest first.
        narrowest: the least precise type that the network goes through, asked where it would be accused.
        through_kinks: whether to go on with longer steps where there are kinks, which longer steps don't leave.
    """
    passes = _passes(run, change, point, dtype)
    sites = torch.cat([p.sites for p in passes]).cpu()
    rows = torch.cat([p.rows for p in passes]).cpu()
    last = Reading("unread", "rounding")
    rounds_to: torch.dtype | None = None
    for limit, step in ladder:
        near = _probed(run, change, passes, step, dtype)
        last = judged(near, sites, rows, limit)
        if last.cause == "kinks":
            far = _probed(run, change, passes, step, dtype, times=2)
            last = judged(near.less_curved(far), sites, rows, limit)
            if last.cause == "kinks" and not through_kinks and near.as_bent(far, last.errors):
                return last
        if last.answer == "altered":
            rounds_to = rounds_to or narrowest(passes[0].rows)
            if step < PLATEAU * torch.finfo(rounds_to).eps:
                last = Reading("unread", "casts", narrowest=rounds_to)
        if last.answer != "unread" or last.cause in ("flat", "nonfinite"):
            return last
    rounds_to = rounds_to or narrowest(passes[0].rows)
    if ladder[-1][1] < PLATEAU * torch.finfo(rounds_to).eps:
        return Reading("unread", "casts", narrowest=rounds_to)
    return last


def direction(g: Tensor, h: Tensor, noisy: bool, generator: torch.Generator) -> tuple[Tensor, Float[Tensor, " rows"]]:
    """Return a direction of length ‖h‖ per row, and the slope to be expected along it.

    Along the reference and at random: ĝ + c·r̂. With c = 1 a wrong length shows best. With c = √d what the reference
    leaves out shows in any dimension, since a random direction has only 1/√d of it.
    """
    g, h = g.flatten(1), h.flatten(1)
    lengths = norms(h)
    usual = lengths.mean() if bool(lengths.any()) else torch.ones_like(lengths[0])
    lengths = torch.where(lengths > 0, lengths, usual)
    size = g.shape[1]
    share = size**0.5 if noisy else 1.0
    along = _unit(g) + share * _unit(torch.randn(g.shape, dtype=g.dtype, device=g.device, generator=generator))
    expected = ((1 + share**2 / size) / (1 + share**2)) ** 0.5
    unit = widened(norms(g)) * widened(lengths) * expected
    return _unit(along) * lengths[:, None], unit


def probed(**numbers: Tensor) -> Probed:
    """Put the numbers of probes together, on the CPU, where every type is known."""
    return Probed(**{name: t.detach().cpu().double() for name, t in numbers.items()})


def narrowest_type(run: Callable[[], object], at_most: torch.dtype) -> torch.dtype:
    """Return the least precise floating point type that a computation goes through."""
    with _Types() as seen:
        try:
            run()
        except Exception:  # not every network runs under a dispatch mode
            return at_most
    return max({at_most, *seen.types}, key=lambda d: torch.finfo(d).eps)


class _Types(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note what it rounds to."""
        result = func(*args, **(kwargs or {}))
        self.types.update(t.dtype for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point())
        return result


def _passes(run: Run, change: Change, point: Trace, dtype: torch.dtype) -> list[_Pass]:
    """Return passes over every site, with other samples each time: the largest gradients first, and some of all."""
    device, sites, batch = point.states[0].device, len(point.states), len(point.labels)
    generator = torch.Generator(device).manual_seed(SEED)
    loudness = torch.stack([norms(g) for g in point.grads]).amax(0).nan_to_num(0.0)
    ranked = loudness.argsort(descending=True, stable=True)
    faintest = FAINT if bool((loudness > FAINT).any()) else 0.0
    loud = int((loudness > faintest).sum()) or batch
    if batch <= ROWS:  # whole, as it came: some networks take no other batch
        rank = ranked.argsort()
        turns = -(-max(2 * sites, min(ROWS, 4 * loud)) // loud)
        parts = [(torch.arange(batch, device=device), rank + turn) for turn in range(turns)]
    else:
        count = sites * max(2, ROWS // sites)
        ranks = (torch.linspace(0, 1, count + 1, device=device)[:-1] ** 2 * loud).long()
        order = torch.arange(count, device=device)
        order = order[(order % sites).argsort(stable=True)]  # by site: few sites are moved in one pass
        parts = [(ranked[ranks[part]], part) for part in order.split(ROWS)]
    return [
        _pass(run, change, point, dtype, generator, faintest, rows, part % sites, part // sites) for rows, part in parts
    ]


def _pass(
    run: Run,
    change: Change,
    point: Trace,
    dtype: torch.dtype,
    generator: torch.Generator,
    faintest: float,
    rows: Tensor,
    sites: Tensor,
    turn: Tensor,
) -> _Pass:
    ways: dict[int, Tensor] = {}
    predicted, unit, least = (widened(torch.zeros(len(rows), device=rows.device, dtype=dtype)) for _ in range(3))
    for site in sites.unique().tolist():
        g, h = point.grads[site], point.states[site]
        ways[site] = torch.zeros((len(rows), *h.shape[1:]), dtype=dtype, device=h.device)
        for noisy in (False, True):
            mine = ((sites == site) & (turn % 2 == int(noisy))).nonzero().flatten()
            if not len(mine):
                continue
            grads = g[rows[mine]].to(dtype)
            way, size = direction(grads, h[rows[mine]].to(dtype), noisy, generator)
            ways[site][mine] = way.view_as(ways[site][mine])
            predicted[mine] = (widened(grads.flatten(1)) * widened(way)).sum(1)
            unit[mine] = size
            least[mine] = max(torch.finfo(g.dtype).tiny, faintest) * way.shape[1] ** 0.5 * widened(norms(way))
    before = run(rows, {})
    _, magnitude = change(before, before, rows)
    # Under a stream that has exploded, a step from an early site must be larger to be seen at the end.
    finest = (torch.finfo(dtype).eps * magnitude / torch.where(unit > 0, unit, magnitude)).sqrt()
    finest = finest.nan_to_num(0.0).clamp(max=LONGEST)
    return _Pass(rows, sites, ways, predicted, unit, least, finest, before)


def _probed(
    run: Run, change: Change, passes: Sequence[_Pass], step: float, dtype: torch.dtype, times: int = 1
) -> Probed:
    found: list[Probed] = []
    for p in passes:
        steps = times * p.finest.clamp(min=step)
        shares = {site: steps.to(dtype).view(-1, *[1] * (way.ndim - 1)) * way for site, way in p.ways.items()}
        sides = [run(p.rows, {site: sign * way for site, way in shares.items()}) for sign in (1, -1)]
        (up, magnitude), (down, _) = (change(out, p.before, p.rows) for out in sides)
        found.append(
            probed(
                slope=(up - down) / (2 * steps),
                predicted=p.predicted,
                bend=(up + down) / steps,
                rounding=torch.finfo(dtype).eps * magnitude / steps,
                unit=p.unit,
                least=p.least,
            )
        )
    return Probed(**{name: torch.cat([getattr(one, name) for one in found]) for name in NUMBERS})


def judged(found: Probed, sites: Tensor, rows: Tensor, limit: float) -> Reading:
    """Return what probes of (P,) sites and rows say at a limit."""
    error, noise, says = found.errors()
    each = [(sites == site) & says for site in sites.unique().tolist()]
    pooled = noise.clone()
    for mine in each:
        if bool(mine.any()):  # one kink may hide its bend by chance, not all of a site
            pooled[mine] = torch.maximum(noise[mine], noise[mine].quantile(0.5))
    right = says & (error <= limit) & (noise <= limit)
    wrong = says & (error > limit) & (error > DOUBT * pooled)
    decided = right | wrong
    errors = {i: float(error[i]) for i in decided.nonzero().flatten().tolist()}
    if not bool(says.any()):
        return Reading("unread", "flat" if bool(torch.isfinite(error).any()) else "nonfinite")
    if any(2 * int((mine & decided).sum()) < int(mine.sum()) for mine in each):
        rounds = (found.rounding / found.unit.clamp(min=torch.finfo(torch.float64).tiny))[says & ~decided].quantile(0.5)
        return Reading("unread", "rounding" if float(rounds) > limit / DOUBT else "kinks", limit=limit, errors=errors)
    worst = float(error[decided].sort(descending=True).values[: OUTLIERS + 1][-1])
    shares = [float(wrong[mine & decided].double().mean()) if bool((mine & decided).any()) else 0.0 for mine in each]
    least = min(0.5, max(shares))
    off = tuple(site for site, share in zip(sites.unique().tolist(), shares) if share >= least and worst > limit)
    disagreeing = torch.isin(sites, torch.tensor(off, dtype=sites.dtype)) if off else torch.ones_like(says)
    return Reading(
        "altered" if worst > limit else "agrees",
        "",
        worst,
        limit,
        off,
        len(rows[decided].unique()),
        bool((noise > limit)[disagreeing & says].any()),
        errors,
    )


def nudges(states: Sequence[Tensor], share: float) -> dict[int, Tensor]:
    """Return a small random move of every state, by which values that are exactly equal become different ones."""
    generator = torch.Generator(states[0].device).manual_seed(SEED + 1)
    moves: dict[int, Tensor] = {}
    for site, h in enumerate(states):
        lengths = norms(h)
        lengths = torch.where(lengths > 0, lengths, lengths.mean() if bool(lengths.any()) else 1.0)
        noise = torch.randn(h.shape, dtype=h.dtype, device=h.device, generator=generator)
        size = share / h[0].numel() ** 0.5
        moves[site] = (noise.flatten(1) * (size * lengths)[:, None]).view_as(h)
    return moves


def norms(x: Tensor) -> Float[Tensor, " rows"]:
    """Return the length of each row; a gradient of 1e-25 squared would be 0 in float32."""
    x = x.flatten(1)
    largest = x.abs().amax(1)
    safe = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    return safe * torch.linalg.vector_norm(x / safe[:, None], dim=1)


def type_word(dtype: torch.dtype) -> str:
    """Return the name of a type as it is printed: "float32"."""
    return str(dtype).removeprefix("torch.")


def _unit(x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
    lengths = norms(x)
    return x / torch.where(lengths > 0, lengths, 1.0)[:, None]
