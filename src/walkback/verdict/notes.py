"""What could make a verdict wrong, said beside it. Notes change no number and no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from math import ceil, floor, sqrt
from typing import Any

from walkback.measures.measurements import Measurements, deep_of
from walkback.notes import Note, coded
from walkback.verdict.chain import is_concentrated, loudest
from walkback.verdict.checks import DiagnosticThresholds, dtype_floor, reference_precision, reference_validity
from walkback.verdict.claim import Accuracy, Claim, accuracies
from walkback.verdict.findings import Verdict, all_clear
from walkback.verdict.outcome import disagree

APART = 5.0  # standard errors between the accuracy that is claimed and the one on the probe
NEARLY = 0.99  # cosine at every deep site from which a credit may as well be the gradient with noise
BETTER = 0.02  # by how much a mean cosine with a neighbouring site must at least exceed that with the own one


def notes_on(v: Verdict, m: Measurements, claim: Claim, t: DiagnosticThresholds) -> list[Note]:
    """Return everything to be said beside a verdict, in the order of the report."""
    notes = [*m.nonfinite, *(note for note in (m.altered, m.doubted) if note is not None)]
    notes += [note for note in m.notes if note.code != "stepped-credit" or credit_exact(m) is None]
    notes += on_claim(m, claim, t)
    if v.measurement_valid is False and not v.failed:
        notes.append(Note("reference-under-floor"))
    notes += _depth_differs(v)
    notes += [*editions_differ(m, t, v.edition), *_clamp_decides(m, v.edition)]
    if is_concentrated(m):
        notes.append(Note("concentrated", loudest(m), {"share": m.gamma_concentration}))
    return notes


def editions_differ(m: Measurements, thresholds: DiagnosticThresholds, edition: str) -> list[Note]:
    """Return a note where the published reading of the reference and the intrinsic one differ, and both were taken."""
    if m.nonfinite or m.altered:
        return []
    floor = thresholds.g_norm_floor if edition == "four-diagnostic" else dtype_floor(m, thresholds)
    published = reference_validity("D2", m, floor)
    exact = reference_precision("D2", m, thresholds)
    if None in (published.flagged, exact.flagged) or published.flagged == exact.flagged:
        return []
    values = {"edition": edition, "exact": not exact.flagged, "error": exact.value}
    return [Note("editions-differ", None, {**values, "g_norm": published.value, "floor": floor})]


def _depth_differs(v: Verdict) -> list[Note]:
    """Return a note where the gain over a trained control and the blocks' worth were both decided, and differently."""
    found = dict(zip(v.names, v.findings))
    if not disagree(found):
        return []
    decides, other = sorted((found["depth"], found["outcome"]), key=lambda f: f.beside)
    values = {"decides": decides.check, "other": other.check, "value": decides.value, "beside": other.value}
    return [Note("depth-differs", None, {**values, "flagged": other.flagged})]


def _clamp_decides(m: Measurements, edition: str) -> list[Note]:
    """Return a note on what a clamped cosine would have said, in the edition that does not judge by its floor."""
    both = enumerate(zip(m.cosine, m.cosine_clamped))
    off = [(abs(a - b), site) for site, (a, b) in both if a is not None and b is not None]
    error, site = max(off, default=(0.0, 0))
    if edition != "intrinsic" or m.nonfinite or error <= 0.005:
        return []
    return [Note("clamp-decides", site, {"error": error})]


def clamped_readable(m: Measurements, thresholds: DiagnosticThresholds) -> bool | None:
    """Return whether the cosine as scripts compute it, with ε below, is readable in this dtype; None: not measured."""
    return all_clear(reference_validity("D2", m, dtype_floor(m, thresholds)))


def unclamped_exact(m: Measurements, thresholds: DiagnosticThresholds) -> bool | None:
    """Return whether the cosine without a clamp is the one that float64 gives; None where that was not asked.

    It is not where the gradient is rounding, nor where the credit is seen to be (`credit_exact`).
    """
    return False if credit_exact(m) is False else all_clear(reference_precision("D2", m, thresholds))


def credit_exact(m: Measurements) -> bool | None:
    """Return whether float64 gives the credit of the first batch the same cosines; None where it was not asked."""
    asked = m.conditions.get("intrinsic")
    if not isinstance(asked, Mapping) or asked.get("credit_again") is not True:
        return None
    return not coded(m.notes, "rounded-credit")


def on_claim(m: Measurements, claim: Claim, thresholds: DiagnosticThresholds) -> tuple[Note, ...]:
    """Return what is odd about a claim and the numbers it is judged on."""
    found = [
        _other_accuracy(m.conditions, claim),
        _no_spread(claim),
        _no_such_share(claim),
        _below_chance(m.conditions, claim),
        _constant(m.h_norm),
        _same_direction(m),
        _shifted(m),
        _controls(claim),
        _other_limits(thresholds),
    ]
    return tuple(note for note in found if note)


def _other_accuracy(conditions: dict[str, Any], claim: Claim) -> Note | None:
    measured, samples = conditions.get("probe_accuracy"), conditions.get("samples")
    if claim.accuracy is None or not isinstance(measured, float) or not isinstance(samples, int) or samples < 1:
        return None
    claimed = min(accuracies("headline_acc", claim.accuracy), key=lambda a: abs(a - measured))
    middle = (claimed + measured) / 2
    error = sqrt(max(middle * (1 - middle), 1 / samples) / samples)
    if abs(claimed - measured) <= max(APART * error, 0.01):
        return None
    return Note("other-accuracy", None, {"claimed": claimed, "measured": measured, "samples": samples})


def _no_spread(claim: Claim) -> Note | None:
    """Return a note on several seeds with one number: of the network, of its control, or as the gain between them."""
    given = {"headline_acc": claim.accuracy, "frozen_baseline_acc": claim.frozen}
    seeds = {name: accuracies(name, value) for name, value in given.items() if value is not None}
    if len(seeds) == 2:
        seeds["the gain over frozen blocks"] = [a - b for a, b in zip(*seeds.values())]
    same = {name: row for name, row in seeds.items() if len(row) > 1 and max(row) - min(row) < 1e-9}
    if not same:
        return None
    shared = {name: row[0] for name, row in same.items()}
    return Note("no-spread", None, {"same": shared, "seeds": len(next(iter(same.values())))})


def _no_such_share(claim: Claim) -> Note | None:
    """Return a note on an accuracy that no number of right answers gives, to the digits it is told with."""
    n = claim.test_samples
    if n is None:
        return None
    given = {"headline_acc": claim.accuracy, "frozen_baseline_acc": claim.frozen, "bp_acc": claim.bp}
    for name, value in given.items():
        for accuracy in [] if value is None else accuracies(name, value):
            digits = -int(Decimal(repr(accuracy)).as_tuple().exponent)
            off = n * max(0.5 * 10.0**-digits, 1e-7)  # float32 has seven digits
            if floor(accuracy * n + off) < ceil(accuracy * n - off):
                return Note("no-such-share", None, {"name": name, "accuracy": accuracy, "samples": n})
    return None


def _controls(claim: Claim) -> Note | None:
    """Return a note on the gain over every control, where there are several, and which of them was named beforehand."""
    gains = claim.gains()
    return Note("controls", None, {"primary": claim.control, "gains": gains}) if len(gains) > 1 else None


def _below_chance(conditions: dict[str, Any], claim: Claim) -> Note | None:
    """Return a note on a control under half of chance; where the number of classes is unknown, on one never right."""
    if claim.frozen is None:
        return None
    classes, lowest = conditions.get("classes"), min(accuracies("frozen_baseline_acc", claim.frozen))
    chance = 1 / classes if isinstance(classes, int) and classes > 1 else None
    if (lowest > 0) if chance is None else (lowest >= chance / 2):
        return None
    return Note("below-chance", None, {"frozen": lowest, "chance": chance})


def earlier_epoch(claimed: Accuracy, epochs: Sequence[float], logged: Sequence[float | None]) -> Note | None:
    """Return whether an accuracy is that of an earlier epoch than the last: the best one, usually.

    >>> print(earlier_epoch(0.41, [1, 2, 3], [0.30, 0.41, 0.35]))
    the headline accuracy 0.410 is that of epoch 2, not of the last, 0.350: take the last epoch's, never the best
    """
    last = logged[-1]
    if not isinstance(claimed, float) or last is None or abs(claimed - last) < 5e-4:
        return None
    for epoch, accuracy in zip(epochs, logged):
        if accuracy is not None and abs(accuracy - claimed) < 5e-4:
            return Note("earlier-epoch", None, {"claimed": claimed, "epoch": epoch, "last": last})
    return None


def _constant(norms: Sequence[float | None]) -> Note | None:
    known = [n for n in norms if n]
    if len(norms) < 3 or len(known) < len(norms) or max(known) - min(known) > 1e-3 * max(known):
        return None
    return Note("constant-norm", None, {"norm": known[0]})


def _same_direction(m: Measurements) -> Note | None:
    """Return a note if the credit is the BP gradient in all but name. Of an altered reference nothing follows."""
    known = [c for c in m.cosine if c is not None]
    if len(known) < 2 or len(known) < len(m.cosine) or coded(m.notes, "bp-itself") or m.altered or m.doubted:
        return None
    if min(known) > 1 - 1e-6:
        return Note("bp-direction")
    if max(known) < -1 + 1e-6:
        return Note("bp-against")
    deep = [m.cosine[site] or 0.0 for site in deep_of(m.cosine, m.conditions)]
    return Note("bp-nearly", None, {"least": min(deep)}) if deep and min(deep) > NEARLY else None


def _shifted(m: Measurements) -> Note | None:
    """Return a note if the credits fit the gradients of the next or the previous site better than those of their own.

    The mean of cos(a_l, g_{l±1}) − cos(a_l, g_l) over the sites that have both must be more than chance makes it: a
    credit that has nothing to do with either has the null band of its cosine times ‖ĝ_{l±1} − ĝ_l‖ there, which is
    √(2 − 2 cos(g_l, g_{l±1})). The mean of cos(a_l, g_{l±1}) itself must be more than chance makes it, too: a credit
    against its own gradient fits no neighbour by that. A credit that is exactly the gradient of a neighbour, and not of
    its own site, is enough by itself.
    """
    band = m.null_high or [None] * len(m.cosine)
    found = []
    for fits, values, apart in (
        ("next", m.cosine_above, m.gradient_next),
        ("previous", m.cosine_below, [None, *m.gradient_next[:-1]] if m.gradient_next else []),
    ):
        rows = list(zip(m.cosine, values, band, apart or [None] * len(values)))
        both = [
            (c, s, b or 0.0, (b or 0.0) * sqrt(max(0.0, 2 - 2 * (p or 0.0))))
            for c, s, b, p in rows
            if c is not None and s is not None
        ]
        if not both:
            continue
        n = len(both)
        own, shifted = (sum(side) / n for side in list(zip(*both))[:2])
        alone, between = (sqrt(sum(b * b for b in side)) / n for side in list(zip(*both))[2:])
        exact = any(s > 1 - 1e-6 and c < 1 - 1e-4 for c, s, *_ in both)
        if exact or (shifted > alone and shifted - own > max(BETTER, between)):
            found.append((exact, shifted - own, {"fits": fits, "own": own, "shifted": shifted}))
    return Note("shifted-pairing", None, max(found, key=lambda one: one[:2])[2]) if found else None


def _other_limits(thresholds: DiagnosticThresholds) -> Note | None:
    published = asdict(DiagnosticThresholds())
    changed = {k: [v, published[k]] for k, v in asdict(thresholds).items() if v != published[k]}
    return Note("other-thresholds", None, {"changed": changed}) if changed else None
