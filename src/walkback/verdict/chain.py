"""The walk-back chain: the four questions a claim is asked, in words, each with its answer."""

from __future__ import annotations

from math import prod

from walkback.measures.measurements import Measurements, deep_of, gamma_cosines
from walkback.measures.over_sites import cosine_error, reads_as
from walkback.verdict.claim import Claim, accuracies
from walkback.verdict.findings import ChainStep, Finding, about

# The share of Σ|cos_l| above which one site is said to carry Γ (Mode 2's sign, advisory).
CONCENTRATED = 0.5
DEPTH_STEP = 3  # the place in the chain of the question whether depth is used


def walk_back_chain(
    m: Measurements,
    claim: Claim,
    found: dict[str, Finding],
    valid: bool | None,
    depth_used: bool | None,
    submode: str | None,
    precise: bool = False,
) -> tuple[ChainStep, ...]:
    """Return the claim, whether its reference is measurable, whether depth is used, and which failure it is.

    `precise`: the reference was judged by its rounding, and not by a floor.
    """
    growth, reference, depth = found["growth"], found["reference"], found["depth"]
    return (
        _step_claim(m, claim),
        _step_reference(m, growth, reference, valid, precise),
        _step_depth(depth, found.get("outcome"), depth_used),
        _step_mode(m, growth, reference, valid, depth_used, submode, precise),
    )


def _step_claim(m: Measurements, claim: Claim) -> ChainStep:
    parts = []
    if claim.accuracy is not None:
        values = accuracies("headline_acc", claim.accuracy)
        seeds = f" (mean of {len(values)} seeds)" if len(values) > 1 else ""
        parts.append(f"accuracy {sum(values) / len(values):.3f}{seeds}")
    if m.gamma is not None:
        sites = len(gamma_cosines(m.cosine, m.conditions))
        parts.append(f"Γ = {m.gamma:+z.3f}" + (f" over sites 0…{sites - 1}" if sites else ""))
    if m.gamma is None and m.cosine:
        parts.append("a cosine that could not be measured at every site")
    text = " and ".join(parts) if parts else "no accuracy and no cosine were given"
    return ChainStep(1, "The claim", text, None)


def _step_reference(
    m: Measurements, growth: Finding, reference: Finding, valid: bool | None, precise: bool
) -> ChainStep:
    parts = []
    if precise:
        parts += _said_of_precision(m, reference)
    elif reference.value is not None:
        relation = "under" if reference.value < reference.limit else "above"
        parts.append(f"‖g_L‖ = {reference.value:.2g} is {relation} the floor of {reference.limit:.2g}")
    if reference.reason:
        parts.append(reference.reason)
    if growth.value is not None:
        relation = "above" if growth.flagged else "within"
        least = f" ({growth.reason})" if growth.reason else ""
        parts.append(f"growth {growth.value:.3g}x per block is {relation} {growth.limit:.3g}x{least}")
    if m.growth_total is not None and m.growth_total > growth.limit and not growth.flagged:
        parts.append(f"but {m.growth_total:.3g}x over the whole depth")
    worst = max((b for b in m.below_eps if b is not None), default=0.0)
    if worst > 0:
        parts.append(f"up to {worst:.0%} of samples have a reference under the cosine's ε")
    return ChainStep(2, "Is the reference measurable?", "; ".join(parts) or "not measured", valid)


def _said_of_precision(m: Measurements, reference: Finding) -> list[str]:
    parts = []
    error, site = cosine_error(m.float64_disagreement, m.float64_shift)
    if error is not None:
        relation = "above" if error > reference.limit else "within"
        parts.append(
            f"rounding of the gradient puts a cosine off by {error:.2g} at most (site {site}), "
            f"{relation} {reference.limit:.2g}"
        )
    clamp = max((e for e in m.epsilon_share if e is not None), default=0.0)
    if clamp > 0.005:
        parts.append(f"the ε of F.cosine_similarity would take away up to {clamp:.0%} of it at some site")
    lost = max((a for a in m.absorption if a is not None), default=0.0)
    if lost > 0.005:
        parts.append(f"h + f loses up to {lost:.0%} of f to rounding at some site")
    return parts


def _step_depth(depth: Finding, outcome: Finding | None, used: bool | None) -> ChainStep:
    title = "Do trained blocks beat frozen ones?"
    if outcome is None:
        return ChainStep(DEPTH_STEP, title, _gain(depth, "frozen blocks"), used)
    text = f"{_gain(outcome, 'their own random draws')} ({outcome.check})"
    if depth.value is not None:
        first, second = (text, depth) if depth.beside else (f"{_gain(depth, 'frozen blocks')} ({depth.check})", outcome)
        text = f"{first}; beside it {_gain(second, _AGAINST[about(second)])} ({second.check}), which decides nothing"
    return ChainStep(DEPTH_STEP, title, text, used)


_AGAINST = {"depth": "frozen blocks", "outcome": "their own random draws"}


def _gain(depth: Finding, over: str) -> str:
    if depth.value is None:
        return depth.reason
    interval = "" if depth.interval is None else f" (95 % interval {depth.interval[0]:+z.1f}…{depth.interval[1]:+z.1f})"
    why = "undecided" if depth.straddles else depth.reason
    text = f"{depth.value:+z.1f} pp over {over}{interval}, margin {depth.limit:.3g} pp"
    return f"{text}; {why}" if why else text


def _step_mode(
    m: Measurements,
    growth: Finding,
    reference: Finding,
    valid: bool | None,
    used: bool | None,
    submode: str | None,
    precise: bool,
) -> ChainStep:
    title = "Which failure is it?"
    concentrated = is_concentrated(m)
    sound = "clear of rounding" if precise else "above its floor"
    if valid is False and not reference.flagged:
        text = "scale pathology: a block multiplies the stream"
        text += "" if reference.flagged is None else ", although the reference is still above its floor"
        return ChainStep(4, title, text, False)
    if m.altered:
        text = 'none can be told: every g_l is an altered gradient; measure with reference="derived" or a plain twin'
        return ChainStep(4, title, text, False)
    if valid is False:
        named = f", {submode}" if submode else ""
        what = "that is not finite" if m.nonfinite_kinds else "under the floor"
        if precise and not m.nonfinite_kinds:
            what = "that rounding has changed"
        text = f"Mode 1, measurement degeneracy{named}: Γ compares the credit with a reference {what}"
        if growth.flagged is False:
            text += " (without an exploding block)"
        text += "; a run with a per-block penalty shows whether credit is poor as well (Mode 2)"
        return ChainStep(4, title, text, False)
    if concentrated:
        text = (
            f"Mode 2, aggregation collapse: site {loudest(m)} carries {m.gamma_concentration:.0%} of Γ while the "
            f"reference is {sound}; the average hides it"
        )
        return ChainStep(4, title, text, False if used is False else None)
    if used is False and valid is None:
        return ChainStep(4, title, "unused depth; whether the reference is measurable was not tested", False)
    if used is False:
        return ChainStep(4, title, f"unused depth with a reference {sound}: {_credit_words(m)}", False)
    if valid is None and used is None:
        return ChainStep(4, title, "can't be told: neither the reference nor depth was tested", None)
    if growth.flagged:
        return ChainStep(4, title, f"growth with a reference still {sound}: flagged, but no failure on its own", None)
    missing = [name for name, known in (("the reference", valid), ("depth", used)) if known is None]
    if missing == ["depth"] and _aligned(m) == []:
        return ChainStep(4, title, f"{_credit_words(m)}; whether depth is used was not decided", None)
    if missing:
        return ChainStep(4, title, f"none of the audited failures shows, but {missing[0]} was not decided", None)
    return ChainStep(4, title, "none of the audited failures shows", True)


def _credit_words(m: Measurements) -> str:
    """Return whether the credit of the deep sites is poor (Mode 2), which their null bands decide."""
    deep = list(deep_of(m.cosine, m.conditions))
    if not deep or all(m.cosine[site] is None for site in deep):
        return "whether credit is poor (Mode 2) can't be told, since no credit was given at the deep sites"
    average = "" if m.deep_cosine is None else f" (deep mean {m.deep_cosine:+z.3f})"
    aligned = _aligned(m)
    if aligned is None:
        return f"whether credit is poor (Mode 2) can't be told without a null band at every deep site{average}"
    if not aligned:
        return (
            f"Mode 2, poor credit: no cosine of the deep sites is above its null band{average}; whether a step along "
            'the credit helps at all is measured with probes=("nudging",)'
        )
    where = "every deep site" if len(aligned) == len(deep) else f"{len(aligned)} of {len(deep)} deep sites"
    return f"not for want of alignment, for {where} read above the null band{average}; aligned credit was of no use"


def _aligned(m: Measurements) -> list[int] | None:
    """Return the deep sites whose cosine is above its null band; None where one of them has no band."""
    read = {site: _reads(m, site) for site in deep_of(m.cosine, m.conditions)}
    if not read or None in read.values():
        return None
    return [site for site, word in read.items() if word == "signal" and (m.cosine[site] or 0.0) > 0]


def _reads(m: Measurements, site: int) -> str | None:
    lists = (m.cosine, m.null_low, m.null_high, m.cosine_low, m.cosine_high)
    cosine, low, high, *interval = (values[site] if values else None for values in lists)
    return reads_as(cosine, low, high, (interval[0], interval[1]))


def is_concentrated(m: Measurements) -> bool:
    """Return whether one site carries over half of Γ, clearly more than an even share, and is no noise (advisory)."""
    counted = gamma_cosines(m.cosine, m.conditions)
    sites = len(counted)
    share = m.gamma_concentration
    if share is None or sites < 2:
        return False
    # Two random directions in d dimensions have a cosine of about 1/√d: a share of such noise means nothing.
    width = _width(m.conditions.get("state_shape"))
    noise = 0.1 if width is None else 2 / width**0.5
    loudest = max(abs(c) for c in counted if c is not None)
    return share > max(CONCENTRATED, 1.5 / sites) and loudest > noise


def loudest(m: Measurements) -> int:
    """Return the site that carries most of Γ."""
    return max(range(len(gamma_cosines(m.cosine, m.conditions))), key=lambda site: abs(m.cosine[site] or 0.0))


def _width(shape: object) -> int | None:
    if not isinstance(shape, list) or not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        return None
    return prod(shape)
