"""The one table of a report's sentences: the code of a note -> a template of its values, or a function of the note."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def _nonfinite(note: Note) -> str:
    place = "" if note.site is None else f" at site {note.site}"
    if note.values.get("batch") is not None:
        return f"{note.values['kind']} not finite{place}, first in batch {note.values['batch']}"
    said = f" ({note.values['logged']})" if note.values.get("logged") else ""
    return f"{note.values['kind']} not finite{place}{said}, as logged"


def _factor(value: float | None) -> str:
    return "no number" if value is None else f"{value:.3g}x"


def _altered(note: Note) -> str:
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


def _unused_columns(note: Note) -> str:
    meant = note.values["meant"]
    told = [f"{c}: did you mean {meant[c]}?" if c in meant else _ALONE.get(c, str(c)) for c in note.values["columns"]]
    more = f", and {more} more" if (more := note.values.get("more")) else ""
    return f"columns that were not used: {', '.join(told)}{more}"


# Ends of the stream that say something together only.
_ALONE = {
    end: f"{end} (growth over the whole depth needs {other} too)"
    for end, other in (("h_norm_last", "h_norm_first"), ("h_norm_first", "h_norm_last"))
}


def _steps_outside(note: Note) -> str:
    v = note.values
    told = [f"{where} in {', '.join(v[key])}" for key, where in _ENDS.items() if v[key]]
    line = f". To read them as one stream: {v['line']}" if v.get("line") else ""
    return f"residual steps run {' and '.join(told)}: they are no sites, and nothing here measures them{line}"


_ENDS = {"before": "before the first site,", "after": "after the last site,"}


def _few_samples(note: Note) -> str:
    v = note.values
    return (
        f"measured on {v['samples']} samples in {v['batches']} batch{'es' * (v['batches'] != 1)}: the protocol asks "
        f"for at least 8 disjoint batches of about {v['batch_size']}"
    )


def _left_out(note: Note) -> str:
    v = note.values
    return f"cosine at site {note.site} leaves out {v['samples']} of {v['of']} samples: {why_no_cosine(v)}"


def why_no_cosine(values: Mapping[str, Any]) -> str:
    """Return why samples have no cosine: the reference underflowed, something is not finite, the credit is zero."""
    if values["cause"] == "reference":
        return f"the reference is zero or underflowed (norm below {values['floor']} in {values['dtype']})"
    return {"nonfinite": "credit or reference is not finite", "credit": "the credit is zero"}[values["cause"]]


def _no_cosine(note: Note) -> str:
    v = note.values
    if v["cause"] == "credit" and "samples" in v:
        counted = f"for {v['samples']} of {v['of']} samples, which are counted as no change"
        return f"no cosine at site {note.site}: the credit is zero {counted}"
    every = "" if v["cause"] == "nonfinite" else " for every sample"
    return f"no cosine at site {note.site}: {why_no_cosine(v)}{every}"


def _depth_differs(note: Note) -> str:
    v = note.values
    ours, other = ("passes", "flags") if v["flagged"] else ("flags", "passes")
    return (
        f"the two checks of depth disagree: {v['decides']} {ours} ({v['value']:+z.1f} pp) and decides, "
        f"{v['other']} {other} ({v['beside']:+z.1f} pp). D3 compares with another training, in which "
        "the stem learned beside frozen blocks; D3-outcome keeps this stem and draws the blocks anew"
    )


def _no_spread(note: Note) -> str:
    told = ", ".join(f"{name} is {value:.3f}" for name, value in note.values["same"].items())
    return (
        f"seeds without spread: {told} for all {note.values['seeds']} of them; one run told several times is not "
        "several seeds, and an interval from it has no width"
    )


def _below_chance(note: Note) -> str:
    chance = note.values["chance"]
    beside = "" if chance is None else f", and chance is {chance:.3f}"
    return (
        f"the frozen control is below chance: frozen_baseline_acc is {note.values['frozen']:.3f}{beside}; a readout on "
        "random blocks reaches chance at least, so this is no control and the margin over it says nothing"
    )


def _other_thresholds(note: Note) -> str:
    changed = note.values["changed"].items()
    told = ", ".join(f"{name} {value:g} (published {published:g})" for name, (value, published) in changed)
    return f"judged with other thresholds than the published ones: {told}"


def _probe_left_out(note: Note) -> str:
    v = note.values
    some = ", ".join(f"{n} at site {site}" for site, n in v["left_out"].items())
    return f"{', '.join(v['probes'])}: of {v['of']} samples, those where the loss does not change were left out: {some}"


def _shifted(note: Note) -> str:
    v = note.values
    return (
        f"the credit fits the gradient of the {v['fits']} site better than that of its own: mean cosine "
        f"{v['shifted']:+z.3f} against {v['own']:+z.3f}. Neighbouring gradients of a residual stream are nearly "
        "parallel, so an index that is off by one looks like alignment: check which site each credit belongs to"
    )


def _rounded_credit(note: Note) -> str:
    reported = note.values["reported"]
    read = "no direction at all" if reported is None else f"a cosine of {reported:+z.2f}"
    return (
        f"the credit of site {note.site} is rounding: as the rule computes it, it has {read} with the gradient of the "
        f"first batch, and {note.values['float64']:+z.2f} with network and rule in float64"
    )


def _editions_differ(note: Note) -> str:
    v = note.values
    if v["exact"]:
        said = f"it puts no cosine off float64 by more than {v['error']:.1g}: the reference is small, not wrong"
        if v["edition"] == "intrinsic":
            return f"the published D2 would flag (‖g_L‖ = {v['g_norm']:.2g} < {v['floor']:.2g}), but {said}"
        return f"the intrinsic D2 would not flag: {said}"
    if v["edition"] == "intrinsic":
        return f"the published D2 would not flag (‖g_L‖ = {v['g_norm']:.2g}), but rounding decides the reference"
    return f"the intrinsic D2 would flag: rounding puts a cosine off by {v['error']:.1g}"


def _stepped_credit(note: Note) -> str:
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


def _unproven(proof: str, why: str, detail: str, sites: list[int]) -> str:
    which = f"site{'s' * (len(sites) > 1)} {', '.join(map(str, sites))}"
    what = {
        "weights": f"recorded credit of {which} is what trains the weights there",
        "inside": "backward pass inside each module hands its credit on unaltered",
        "samples": f"recorded credits{f' of {which}' if sites else ''} belong to the samples of the batch",
        "mode": "recorded credits, of eval mode, are those of training mode",
    }[proof]
    return f"it could not be proven that the {what}: {UNPROVEN[why]}{f' ({detail})' if detail else ''}"


SENTENCES: dict[str, str | Callable[[Note], str]] = {
    # of the user, and of reports in an older format
    "remark": "{text}",
    "said": "{text}",
    "said-anew": "{text}",
    # of the reference
    "unused-columns": _unused_columns,
    "nonfinite": _nonfinite,
    "altered-backward": _altered,
    "unchecked-backward": (
        "the forward pass has something that can alter its gradient, and this could not be checked: {why}"
    ),
    "unchecked-reference": "the reference is {reference}, and could not be checked: {why}",
    "perturbed-rounding": (
        "the reference is compared with a second pass under perturbed rounding, not with float64 ({why}): its "
        "disagreement is a lower bound"
    ),
    "rounded-credit": _rounded_credit,
    "stepped-credit": _stepped_credit,
    "editions-differ": _editions_differ,
    "depth-differs": _depth_differs,
    "clamp-decides": (
        "F.cosine_similarity would report a cosine off by {error:.2g} at site {site}, from its ε alone: multiply the "
        "loss by a constant, or leave ε out"
    ),
    "reference-under-floor": (
        "the reference is under the floor, so Γ should not be read, although the published rule asks for D1 too"
    ),
    # of the network
    "guessed": "guessed: {what}",
    "random-forward": (
        "the network draws random numbers in eval mode too (dropout that is always on, feedback that is drawn?): each "
        "pass may have another gradient or credit, and the numbers are those of one draw per batch"
    ),
    "derived-reference": (
        "the network cuts its own graph, no gradient reaches {cut}: g_l is derived from its forward pass alone"
    ),
    "padding-labels": (
        "labels of padding count in the loss, as they do in the model's own; set them to -100 to leave them out"
    ),
    "unseen-sum": (
        "h_{site} is taken for h_{before} + what block {site} ({block}) returns, but no sum of the two is seen in the "
        "network: ‖h‖, ‖g‖ and cosines of site {site} are right only if it adds the branch as it is. Wrap the block so "
        "that it returns the new state"
    ),
    "received-sites": (
        "stream and branches are put together outside of the blocks by more than a sum (a scale, a norm, an activation)"
        ": sites are what the next block, and the readout, receive"
    ),
    "stepped-sites": (
        "the steps of the stream are made outside of the blocks: site l is the first tensor after block l that all "
        "ways from the blocks so far to the loss lead through (behind what all blocks end with alike); these sites can "
        "be measured, not moved"
    ),
    "stem-injected": (
        "what the stem writes, h_0, goes into later steps too, past the sites between: g_0 is its whole derivative, by "
        "all of these ways"
    ),
    "between-blocks": (
        "weights that are in no block lie between a state and the next block, after sites {sites}: they are no steps "
        "of their own"
    ),
    "steps-outside": _steps_outside,
    "read-past": (
        "the readout reads earlier sites too, {sites}: g_l there is the whole derivative, of what passes the last block"
        " and of what does not"
    ),
    "hidden-count": (
        "return_hidden gives {states} states, the network has {sites} sites; measured on what the blocks received and "
        "returned"
    ),
    "hidden-differs": (
        "return_hidden does not show the stream the network uses (first at site {site}): a script that logs it reports "
        "other norms; measured on what the blocks received and returned"
    ),
    "token-not-found": (
        "the gradient of the last site is zero at every token, so the readout's token can't be found; token norms are "
        "averaged (name it with Anatomy.of(model, pool=0))"
    ),
    "layers-left-out": lambda note: f"layers that are no site: {'; '.join(note.values['layers'])}",
    "layers-passed": (
        "a way leads past {layer}, so this network has a residual stream or skips: sites are the outputs of its "
        "layers, not the stream, and each g_l is that of one layer's output"
    ),
    "layers-read-past": "a later layer reads what comes before {layer}, too: sites are the outputs of all layers",
    "layers-first": "{layers} hands on several states, as (h, c): the site is the first, and g_l that of it alone",
    "layers-recur": (
        "a state goes from step to step past {layer}, as in a recurrent cell that is written by hand: sites are the "
        "outputs of its layers in every step"
    ),
    "layers-summed": lambda note: (
        f"outputs of {' and '.join(note.values['layers'])} meet before another layer reads them, in a network with "
        "sums: sites are the outputs of layers. If one of these layers is a skip with a weight, the stream is their sum"
    ),
    "uncalled-blocks": lambda note: f"never called, so no blocks here: {', '.join(note.values['blocks'])}",
    "blocks-left-out": "the anatomy that was given names {named} of {of} blocks: the others are not measured",
    # of the credit
    "bp-itself": (
        "the credit is the BP gradient bit for bit at every site: this is BP itself, or a rule that fell back to it"
    ),
    "bp-direction": (
        "the credit has the direction of the BP gradient at every site: this is BP, or a rule that fell back to it"
    ),
    "bp-against": ("the credit is against the direction of the BP gradient at every site: BP with the sign changed"),
    "bp-nearly": (
        "the credit is nearly the direction of the BP gradient, {least:.5f} or more at every deep site: does the rule "
        "reach it by itself, as equilibrium propagation can, or is it BP with noise? Ask walkback.certify"
    ),
    "zero-credit": (
        "the credit is zero at every site, for every sample: it teaches the blocks nothing. If it is a difference of "
        "states, as EP's is, measure a copy in float64 (net.double()) to see whether rounding took it"
    ),
    "zero-credit-site": (
        "the credit of {samples} of {of} samples is zero at site {site}: they are counted as no alignment and no change"
    ),
    "no-cosine": _no_cosine,
    "cosine-left-out": _left_out,
    "shifted-pairing": _shifted,
    # of a recorded credit
    "unproven-credit": lambda note: _unproven(**note.values),
    "inner-feedback": (
        "feedback is sent into {module} below what it returns: {fed} of its {of} parameters that were looked at get "
        "their gradient from there, and the credit of site {site} trains the others"
    ),
    "altered-inside": lambda note: (
        f"inside {', '.join(note.values['modules'])} the backward pass is not the derivative of what is computed: "
        f"{note.values['altered']} of {note.values['of']} parameters that were looked at get another gradient than the "
        f"credit of their site gives by that derivative, off by {note.values['difference']:.0%} at most (a scale, a "
        "mask or feedback matrices inside?). The cosine there is of the credit at the module's output, not of what "
        "reaches these weights"
    ),
    "added-gradient": lambda note: (
        f"{note.values['share']:.0%} of a gradient in the weights of {note.values['module']} does not come from the "
        f"credit of site {note.site}: a loss or penalty inside it"
    ),
    "other-writer": (
        "{module}, named as the writer of site {site}, writes neither the state nor what is added to it: its signal is "
        "compared with the gradient of another value"
    ),
    "concentrated": "one site carries {share:.0%} of Γ: report the cosine per layer",
    # of the probe set, the loss, the probes
    "few-samples": _few_samples,
    "repeated-samples": (
        "{share:.0%} of the samples occur more than once: intervals and stability need disjoint batches"
    ),
    "one-class": (
        "all {samples} samples are of class {label}: their gradients share a direction, so stability and accuracy say "
        "nothing about the other classes; shuffle the test set"
    ),
    "sorted-classes": (
        "samples are sorted by class: groups of {group} hold {typical} of {classes} classes, typically, and not the "
        "mix of the whole; their mean gradients then fake or hide a drifting reference; shuffle the test set"
    ),
    "loss-not-cross-entropy": (
        "the loss is not cross-entropy: ‖g‖ is in its units, and the published floor of D2 is not"
    ),
    "loss-scaled": (
        "the loss is {factor:.3g} times cross-entropy, so ‖g‖ is too, and the published floor of D2 is not"
    ),
    "saturated": (
        "logits span {span:.3g} on average, so the softmax is saturated: a head or temperature of this size lifts ‖g‖ "
        "over the floor of D2 whatever the stream does; read growth and the float64 cosines"
    ),
    "controls": lambda note: (
        f"D3 is judged on the control {note.values['primary']}, which was named beforehand; the gain over each: "
        + ", ".join(f"{name} {gain:+z.1f} pp" for name, gain in note.values["gains"].items())
    ),
    "token-denominator": lambda note: (
        f"at site {note.site} the token that is read has {note.values['share']:.1%} of the other tokens' norm, so "
        f"growth is taken over all tokens: {_factor(note.values['all'])}, and {_factor(note.values['read'])} at that "
        "token"
    ),
    "outlier": (
        "one of {of} samples carries {share:.0%} of {what} at site {site}: means over samples, and what is judged by "
        "them, are mostly that sample's; look at it, or leave it out"
    ),
    "unread-samples": (
        "{samples} of {of} samples have no gradient at the last site, so the token they are read at is unknown: ‖h‖ "
        "and growth leave them out"
    ),
    "probe-dtype": "probes run in {dtype}, not float64: {why}",
    "probe-left-out": _probe_left_out,
    # of the claim
    "other-accuracy": (
        "the headline accuracy {claimed:.3f} is not that of these batches, {measured:.3f} of {samples} samples: "
        "another split, epoch or network, or batches that were picked"
    ),
    "earlier-epoch": (
        "the headline accuracy {claimed:.3f} is that of epoch {epoch}, not of the last, {last:.3f}: take the last "
        "epoch's, never the best"
    ),
    "no-spread": _no_spread,
    "below-chance": _below_chance,
    "constant-norm": (
        "every ‖h‖ is the same, {norm:.3g}: a stream that was normalised (or blocks that add nothing) can't show "
        "growth; log the norms as they are"
    ),
    "other-thresholds": _other_thresholds,
    # of a run and of logged rows
    "diverged": "training diverged in {where}",
    "rows-sorted": (
        "rows are not in ascending order of {unit} (first {first}, last {last}): sorted before they were judged"
    ),
    "older-norms": "the {kinds} norms judged are those of {row}: no later row has any",
    "training-mode": "measured in mode {mode}: dropout and batch statistics are in these numbers; take eval mode",
    "large-batch": "gradient norms were multiplied by {factor:.3g}, for a mean loss over {batch:g} samples, as logged",
    "null-without-zero": "null bands without 0 at sites {sites}: chance is on both sides of it",
    "odd-facts": "what can't be: {told}",
    "no-such-share": "{name} is {accuracy}, which no count of {samples} samples gives: of several seeds give each",
    "accuracy-twice": "the accuracy is that of {used}, {value:g}; {other} says {beside:g}",
    "missing-sites": "sites without a number: {told}; what is judged of them is as logged and can't be checked",
    "torn-line": "the last line of {file} is incomplete, as a run that was killed leaves it: left out",
    "zero-credit-epochs": lambda note: (
        f"the credit was zero for every sample in {note.values['epochs']} of {note.values['of']} epochs of training at "
        f"site{'s' * (len(note.values['sites']) > 1)} {', '.join(map(str, note.values['sites']))}: what it should "
        "train there learned nothing"
    ),
}
