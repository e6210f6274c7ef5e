"""The one table of a report's sentences: the code of a note -> a template of its values, or a function of the note."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from walkback.sentence_parts import (
    altered,
    below_chance,
    depth_differs,
    editions_differ,
    factor,
    few_samples,
    left_out,
    no_cosine,
    no_spread,
    nonfinite,
    other_thresholds,
    probe_left_out,
    rounded_credit,
    shifted,
    stepped_credit,
    steps_outside,
    unproven,
    unused_columns,
)

if TYPE_CHECKING:
    from walkback.notes import Note

SENTENCES: dict[str, str | Callable[[Note], str]] = {
    # of the user, and of reports in an older format
    "remark": "{text}",
    "said": "{text}",
    "said-anew": "{text}",
    # of the reference
    "unused-columns": unused_columns,
    "nonfinite": nonfinite,
    "altered-backward": altered,
    "unchecked-backward": (
        "the forward pass has something that can alter its gradient, and this could not be checked: {why}"
    ),
    "unchecked-reference": "the reference is {reference}, and could not be checked: {why}",
    "perturbed-rounding": (
        "the reference is compared with a second pass under perturbed rounding, not with float64 ({why}): its "
        "disagreement is a lower bound"
    ),
    "rounded-credit": rounded_credit,
    "stepped-credit": stepped_credit,
    "editions-differ": editions_differ,
    "depth-differs": depth_differs,
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
    "steps-outside": steps_outside,
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
    "no-cosine": no_cosine,
    "cosine-left-out": left_out,
    "shifted-pairing": shifted,
    # of a recorded credit
    "unproven-credit": lambda note: unproven(**note.values),
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
    "few-samples": few_samples,
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
        f"growth is taken over all tokens: {factor(note.values['all'])}, and {factor(note.values['read'])} at that "
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
    "probe-left-out": probe_left_out,
    # of the claim
    "other-accuracy": (
        "the headline accuracy {claimed:.3f} is not that of these batches, {measured:.3f} of {samples} samples: "
        "another split, epoch or network, or batches that were picked"
    ),
    "earlier-epoch": (
        "the headline accuracy {claimed:.3f} is that of epoch {epoch}, not of the last, {last:.3f}: take the last "
        "epoch's, never the best"
    ),
    "no-spread": no_spread,
    "below-chance": below_chance,
    "constant-norm": (
        "every ‖h‖ is the same, {norm:.3g}: a stream that was normalised (or blocks that add nothing) can't show "
        "growth; log the norms as they are"
    ),
    "other-thresholds": other_thresholds,
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
