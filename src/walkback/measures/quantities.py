"""The one table of what a report holds as numbers: per site (`per_layer.*`) and per network (`values.*`).

Measurements, reports, `judge`, `Watch`, rows of a training, the schema and the page read this table; nothing repeats
its names. A new quantity per site is one entry here and its formula, of the same name, in `formulas.py`.

The order is that of a report's columns. This module imports nothing, so that it can be read without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

# What makes a quantity: an accumulator over traces ("mean" is a mean over samples of the formula of its name), a probe,
# the second pass in float64, or the judging of numbers that are there.
Accumulator = Literal["norms", "stability", "mean", "interval", "null", "gamma", "probe", "precision", "judged"]
# How a number is written: with three digits, with its sign, in per cent, as an interval or a band, in points.
Form = Literal["number", "signed", "share", "interval", "band", "factor", "points"]


@dataclass(frozen=True)
class Quantity:
    """One quantity.

    Args:
        name: its key in `per_layer` or `values`, and the field of Measurements.
        accumulator: what makes it.
        low, high: the range it can lie in; a logged number outside it is something else.
        title: the head of its column in a per-site table; "" has no column of its own.
        latex: the same head in LaTeX; "" where the title does.
        form: how it is written.
        per_site: one number per site 0…L, else one per network.
        needs: "credit" where it has no value without one.
        in_rows: does the row of every epoch of a training hold it?
        required: must a report of schema walkback.report/2 have it?
    """

    name: str
    accumulator: Accumulator
    low: float = -inf
    high: float = inf
    title: str = ""
    latex: str = ""
    form: Form = "number"
    per_site: bool = True
    needs: Literal["", "credit"] = ""
    in_rows: bool = False
    required: bool = False

    @property
    def measured(self) -> bool:
        """Is it a field of Measurements? Probes are in `Measurements.probes`; what is judged is in reports only."""
        return self.accumulator not in ("probe", "judged")

    @property
    def precision(self) -> bool:
        """Does it stand in the table of the reference's precision, apart from the state by site?"""
        return self.accumulator == "precision"


def _site(name: str, accumulator: Accumulator, low: float = -inf, high: float = inf, **more: object) -> Quantity:
    needs = "credit" if accumulator in ("mean", "interval", "null", "gamma") else ""
    return Quantity(name, accumulator, low, high, **{"needs": needs, **more})  # type: ignore[arg-type]


def _scalar(name: str, accumulator: Accumulator, low: float = -inf, high: float = inf, **more: object) -> Quantity:
    return _site(name, accumulator, low, high, **{"per_site": False, **more})


_QUANTITIES = (
    _site("h_norm", "norms", 0.0, title="‖h‖", latex=r"$\|h_l\|$", in_rows=True, required=True),
    # Over all tokens, where the token that is read has next to no norm at some site: growth is then taken over these.
    _site("h_norm_all", "norms", 0.0, title="‖h‖ all tokens", latex=r"$\|h_l\|$ all tokens"),
    _site("g_norm", "norms", 0.0, title="‖g‖", latex=r"$\|g_l\|$", in_rows=True, required=True),
    _site("cosine", "mean", -1.0, 1.0, title="cosine", form="signed", in_rows=True, required=True),
    # The share of samples without credit, which count as cosine 0.
    _site("zero_credit", "mean", 0.0, 1.0, title="zero credit", form="share"),
    # cos(a_l, g_{l+1}) and cos(a_l, g_{l-1}): would a shift by one fit better? And cos(g_l, g_{l+1}): are they alike?
    _site("cosine_above", "mean", -1.0, 1.0, title="with next", form="signed", in_rows=True),
    _site("cosine_below", "mean", -1.0, 1.0, title="with previous", form="signed", in_rows=True),
    _site("gradient_next", "mean", -1.0, 1.0, form="signed"),
    _site("cosine_clamped", "mean", -1.0, 1.0, title="clamped", form="signed", in_rows=True, required=True),
    _site("below_eps", "mean", 0.0, 1.0, title="under ε", latex=r"under $\varepsilon$", form="share", in_rows=True,
          required=True),
    # The 95 % interval of the cosine over samples and batches.
    _site("cosine_low", "interval", title="95 %", form="interval"),
    _site("cosine_high", "interval", form="interval"),
    # The 95 % band of the same credit turned at random, and the dimension it comes from: see nulls.py.
    _site("null_low", "null", -1.0, 1.0, form="band", required=True),
    _site("null_high", "null", -1.0, 1.0, title="null", form="band", required=True),
    _site("null_dimension", "null", 0.0),
    _site("perturbation", "probe", -1.0, 1.0, title="ρ_pert", latex=r"$\rho_\mathrm{pert}$", form="signed",
          required=True),
    _site("nudging", "probe", title="nudge", required=True),
    _site("nudging_relative", "probe", title="nudge rel.", required=True),
    _site("nudging_rms", "probe", title="nudge rms"),
    # How far the reference is from the one in float64: see precision.py.
    _site("float64_disagreement", "precision", 0.0, title="off float64"),
    _site("float64_shift", "precision", title="shift", form="signed"),
    _site("epsilon_share", "precision", 0.0, 1.0, title="ε share", latex=r"$\varepsilon$ share", form="share"),
    _site("absorption", "precision", 0.0, title="absorbed"),
    _scalar("growth", "norms", 0.0, form="factor", in_rows=True, required=True),
    _scalar("growth_total", "norms", 0.0, form="factor", in_rows=True, required=True),
    # The 95 % intervals of growth and of ‖g_L‖ over samples, on a log scale.
    _scalar("growth_low", "norms", 0.0, form="factor"),
    _scalar("growth_high", "norms", 0.0, form="factor"),
    _scalar("g_norm_deepest", "judged", 0.0, required=True),
    _scalar("g_norm_deepest_low", "norms", 0.0),
    _scalar("g_norm_deepest_high", "norms", 0.0),
    _scalar("stability", "stability", -1.0, 1.0, form="signed", in_rows=True, required=True),
    _scalar("depth_margin_pp", "judged", -100.0, 100.0, form="points", required=True),
    _scalar("gamma", "gamma", -1.0, 1.0, form="signed", in_rows=True, required=True),
    _scalar("gamma_concentration", "gamma", 0.0, 1.0, form="share", in_rows=True, required=True),
    _scalar("deep_cosine", "gamma", -1.0, 1.0, form="signed", in_rows=True, required=True),
    _scalar("cosine_error", "judged", 0.0),
    # Its 95 % interval over samples: see precision.py.
    _scalar("cosine_error_low", "precision", 0.0),
    _scalar("cosine_error_high", "precision", 0.0),
    _scalar("stability_distinct", "precision", -1.0, 1.0, form="signed"),
    # The means of the probes over the deep sites.
    _scalar("deep_perturbation", "judged", -1.0, 1.0, form="signed", required=True),
    _scalar("deep_nudging", "judged", required=True),
    _scalar("deep_nudging_relative", "judged", required=True),
    _scalar("deep_nudging_rms", "judged"),
)  # fmt: skip

QUANTITIES: dict[str, Quantity] = {q.name: q for q in _QUANTITIES}
PER_SITE = tuple(q for q in _QUANTITIES if q.per_site)
SCALARS = tuple(q for q in _QUANTITIES if not q.per_site)

# Names by where they are held: fields of Measurements, per site and not, and the probes' lists beside them.
SITE_FIELDS = tuple(q.name for q in PER_SITE if q.measured)
SCALAR_FIELDS = tuple(q.name for q in SCALARS if q.measured)
PROBE_LISTS = tuple(q.name for q in PER_SITE if q.accumulator == "probe")
SHIFTED = ("cosine_above", "cosine_below", "gradient_next")
# What a report may call more of them, as orders of averaging: words, which no page takes for a tag or a link.
NAME = r"^[\w .,+()-]{1,80}$"
# The two ends of each interval and band.
ENDS = tuple((low, low[:-3] + "high") for low in QUANTITIES if low.endswith("_low"))
# What a row of logged numbers may give: the rest is judged anew.
LOGGED_SCALARS = (*SCALAR_FIELDS, "g_norm_deepest")
# What the row of an epoch holds.
ROW_LISTS = tuple(q.name for q in PER_SITE if q.in_rows)
ROW_SCALARS = tuple(q.name for q in SCALARS if q.in_rows)
# What has no value where no credit was given.
NEED_CREDIT = tuple(q.name for q in _QUANTITIES if q.needs == "credit")
