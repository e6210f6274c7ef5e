"""What sentences of notes say that no template can: a function of the note each, and the parts that several share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walkback.notes import Note


def share_held(what: str, inside: float | None, outside: Sequence[str], shown: int = 8) -> str:
    """Return what share of the weights these modules hold, and which hold the rest, in words."""
    if inside is None:
        return f"{what} hold no weights: the network has none"
    more = f", and {len(outside) - shown} more" if len(outside) > shown else ""
    rest = f"; the rest: {', '.join(outside[:shown])}{more}" if outside else ""
    return f"{what} hold {inside:.0%} of the weights{rest}"


def nonfinite(note: Note) -> str:
    """Return the sentence of `nonfinite`."""
    place = "" if note.site is None else f" at site {note.site}"
    if note.values.get("batch") is not None:
        return f"{note.values['kind']} not finite{place}, first in batch {note.values['batch']}"
    said = f" ({note.values['logged']})" if note.values.get("logged") else ""
    return f"{note.values['kind']} not finite{place}{said}, as logged"


def factor(value: float | None) -> str:
    """Return how many times, or that there is no number."""
    return "no number" if value is None else f"{value:.3g}x"


def altered(note: Note) -> str:
    """Return the sentence of `altered-backward`."""
    v = note.values
    sites = ", ".join(map(str, v.get("sites") or ())) or "all together"
    measured = (
        f" (finite differences disagree by {v['error']:.2%}, limit {v['limit']:.2%}; sites {sites})"
        if v.get("error") is not None
        else ""
    )
    return (
        f"the network's own backward pass is not the derivative of its loss{measured}: every g_l and every cosine here "
        'refers to an altered gradient. Measure with reference="derived", or with reference=twin, a plain network with '
        "its weights"
    )


def unused_columns(note: Note) -> str:
    """Return the sentence of `unused-columns`."""
    meant = note.values["meant"]
    told = [f"{c}: did you mean {meant[c]}?" if c in meant else _ALONE.get(c, str(c)) for c in note.values["columns"]]
    more = f", and {more} more" if (more := note.values.get("more")) else ""
    return f"columns that were not used: {', '.join(told)}{more}"


# Ends of the stream that say something together only.
_ALONE = {
    end: f"{end} (growth over the whole depth needs {other} too)"
    for end, other in (("h_norm_last", "h_norm_first"), ("h_norm_first", "h_norm_last"))
}


def steps_outside(note: Note) -> str:
    """Return the sentence of `steps-outside`."""
    v = note.values
    told = [f"{where} in {', '.join(v[key])}" for key, where in _ENDS.items() if v[key]]
    line = f". To read them as one stream: {v['line']}" if v.get("line") else ""
    return f"residual steps run {' and '.join(told)}: they are no sites, and nothing here measures them{line}"


_ENDS = {"before": "before the first site,", "after": "after the last site,"}


def few_samples(note: Note) -> str:
    """Return the sentence of `few-samples`."""
    v = note.values
    return (
        f"measured on {v['samples']} samples in {v['batches']} batch{'es' * (v['batches'] != 1)}: the protocol asks "
        f"for at least 8 disjoint batches of about {v['batch_size']}"
    )


def left_out(note: Note) -> str:
    """Return the sentence of `cosine-left-out`."""
    v = note.values
    return f"cosine at site {note.site} leaves out {v['samples']} of {v['of']} samples: {why_no_cosine(v)}"


def why_no_cosine(values: Mapping[str, Any]) -> str:
    """Return why samples have no cosine: the reference underflowed, something is not finite, the credit is zero."""
    if values["cause"] == "reference":
        return f"the reference is zero or underflowed (norm below {values['floor']} in {values['dtype']})"
    return {"nonfinite": "credit or reference is not finite", "credit": "the credit is zero"}[values["cause"]]


def no_cosine(note: Note) -> str:
    """Return the sentence of `no-cosine`."""
    v = note.values
    if v["cause"] == "credit" and "samples" in v:
        counted = f"for {v['samples']} of {v['of']} samples, which are counted as no change"
        return f"no cosine at site {note.site}: the credit is zero {counted}"
    every = "" if v["cause"] == "nonfinite" else " for every sample"
    return f"no cosine at site {note.site}: {why_no_cosine(v)}{every}"


def depth_differs(note: Note) -> str:
    """Return the sentence of `depth-differs`."""
    v = note.values
    ours, other = ("passes", "flags") if v["flagged"] else ("flags", "passes")
    return (
        f"the two checks of depth disagree: {v['decides']} {ours} ({v['value']:+z.1f} pp) and decides, "
        f"{v['other']} {other} ({v['beside']:+z.1f} pp). D3 compares with another training, in which "
        "the stem learned beside frozen blocks; D3-outcome keeps this stem and draws the blocks anew"
    )


def no_spread(note: Note) -> str:
    """Return the sentence of `no-spread`."""
    told = ", ".join(f"{name} is {value:.3f}" for name, value in note.values["same"].items())
    return (
        f"seeds without spread: {told} for all {note.values['seeds']} of them; one run told several times is not "
        "several seeds, and an interval from it has no width"
    )


def below_chance(note: Note) -> str:
    """Return the sentence of `below-chance`."""
    chance = note.values["chance"]
    beside = "" if chance is None else f", and chance is {chance:.3f}"
    return (
        f"the frozen control is below chance: frozen_baseline_acc is {note.values['frozen']:.3f}{beside}; a readout on "
        "random blocks reaches chance at least, so this is no control and the margin over it says nothing"
    )


def other_thresholds(note: Note) -> str:
    """Return the sentence of `other-thresholds`."""
    changed = note.values["changed"].items()
    told = ", ".join(f"{name} {value:g} (published {published:g})" for name, (value, published) in changed)
    return f"judged with other thresholds than the published ones: {told}"


def probe_left_out(note: Note) -> str:
    """Return the sentence of `probe-left-out`."""
    v = note.values
    some = ", ".join(f"{n} at site {site}" for site, n in v["left_out"].items())
    return f"{', '.join(v['probes'])}: of {v['of']} samples, those where the loss does not change were left out: {some}"


def shifted(note: Note) -> str:
    """Return the sentence of `shifted-pairing`."""
    v = note.values
    return (
        f"the credit fits the gradient of the {v['fits']} site better than that of its own: mean cosine "
        f"{v['shifted']:+z.3f} against {v['own']:+z.3f}. Neighbouring gradients of a residual stream are nearly "
        "parallel, so an index that is off by one looks like alignment: check which site each credit belongs to"
    )


def rounded_credit(note: Note) -> str:
    """Return the sentence of `rounded-credit`."""
    reported = note.values["reported"]
    read = "no direction at all" if reported is None else f"a cosine of {reported:+z.2f}"
    return (
        f"the credit of site {note.site} is rounding: as the rule computes it, it has {read} with the gradient of the "
        f"first batch, and {note.values['float64']:+z.2f} with network and rule in float64"
    )


def editions_differ(note: Note) -> str:
    """Return the sentence of `editions-differ`."""
    v = note.values
    if v["exact"]:
        said = f"it puts no cosine off float64 by more than {v['error']:.1g}: the reference is small, not wrong"
        if v["edition"] == "intrinsic":
            return f"the published D2 would flag (‖g_L‖ = {v['g_norm']:.2g} < {v['floor']:.2g}), but {said}"
        return f"the intrinsic D2 would not flag: {said}"
    if v["edition"] == "intrinsic":
        return f"the published D2 would not flag (‖g_L‖ = {v['g_norm']:.2g}), but rounding decides the reference"
    return f"the intrinsic D2 would flag: rounding puts a cosine off by {v['error']:.1g}"


def stepped_credit(note: Note) -> str:
    """Return the sentence of `stepped-credit`."""
    return (
        f"the credit of site {note.site} may be rounding: {note.values['zeros']:.0%} of its numbers are exactly zero, "
        "and where the state is large the others are whole multiples of one number, as differences of rounded states "
        'are. Measure a copy in float64 (net.double()), or with probes=["intrinsic"]'
    )


# Why a recorded credit could not be proven.
UNPROVEN = {
    "no-parameters": "the module that writes it has no parameters",
    "frozen": "no parameter of the module that writes it is trained",
    "shared": "the parameters of the module that writes it are used outside it too",
    "tied": "weights that are used outside their module too were not looked at",
    "no-gradient": "the run left no gradients in its weights (an optimiser in the backward pass that clears them?)",
    "stopped": (
        "what arrives at the module that writes it gives the weights there no gradient (a feedback layer inside that "
        "sends zeros, a factor of 0, dead units)"
    ),
    "failed": "the run could not be repeated",
    "sharded": "its parameters are sharded",
    "ranks": "gradients are averaged over processes",
    "nonfinite": "it is not finite",
    "one-sample": "the batch has one sample",
    "same": "all samples have the same one, which may be that of an earlier batch",
    "random": "the backward pass draws random numbers",
    "other-states": "training mode computes other states",
    "placed": "in another order the batch has other states",
}


def unproven(proof: str, why: str, detail: str, sites: list[int]) -> str:
    """Return what could not be proven of a recorded credit, and why."""
    which = f"site{'s' * (len(sites) > 1)} {', '.join(map(str, sites))}"
    what = {
        "weights": f"recorded credit of {which} is what trains the weights there",
        "inside": "backward pass inside each module hands its credit on unaltered",
        "samples": f"recorded credits{f' of {which}' if sites else ''} belong to the samples of the batch",
        "mode": "recorded credits, of eval mode, are those of training mode",
    }[proof]
    return f"it could not be proven that the {what}: {UNPROVEN[why]}{f' ({detail})' if detail else ''}"
