"""The protocol on arrays of any framework: NumPy, JAX or torch, batch by batch -> Report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch import Tensor

from walkback.errors import InputError, shown
from walkback.measures.accumulate import Meter
from walkback.measures.measurements import Found, Measurements
from walkback.measures.session import paired_by
from walkback.measures.stepped import Stepped
from walkback.measures.witness import Witness
from walkback.network.prints import fingerprints, prints_of
from walkback.network.tokens import read_at, read_still
from walkback.notes import Note
from walkback.progress import track
from walkback.registry import one_of, texts
from walkback.report.make import make_report
from walkback.report.report import Report
from walkback.tracing.trace import Trace
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import Accuracy, Claim, Correct
from walkback.verdict.editions import decide

PER_SITE = ("states", "grads", "credits")
KEYS = (*PER_SITE, "losses", "logits", "labels", "inputs", "mask", "backward_error", "reduction")
REDUCTIONS = ("sum", "mean")
# Finite differences in float64 and the gradient of a float32 pass: farther apart, it is another gradient.
BACKWARD_LIMIT = 1e-2


def diagnose_arrays(
    batches: Iterable[Mapping[str, Any]],
    headline_acc: Accuracy = None,
    frozen_baseline_acc: Accuracy = None,
    *,
    claim: Claim | None = None,
    bp_acc: Accuracy = None,
    bp_frozen_acc: Accuracy = None,
    correct: Correct | None = None,
    method: str = "",
    notes: str = "",
    thresholds: DiagnosticThresholds | None = None,
    edition: str = "three-check",
    reduction: str | None = None,
    pairing: str = "site",
    gamma_over: str = "0..L-1",
    deep_over: str = "1..L",
    pool: int | str | None = None,
) -> Report:
    """Measure a network by its arrays and say which claims must be walked back: `diagnose` without the network.

    The batches are read one after the other, so a generator of any length does, and every number is made by the
    accumulators of `diagnose`. What needs the network (probes, float64, finite differences) is not tested.

    Args:
        batches: one dict per batch, of NumPy, JAX or torch arrays. `states` (h_0…h_L, each (B, …)) and `grads` (the
            gradients by them) are needed; `credits` (the rule's a_0…a_L) gives cosines, nulls, intervals and Γ;
            `losses` (B,), `logits` (B, C) and `labels` (B,) tell what is odd about the samples; `inputs` (B, …)
            recognise repeated ones, else their states do; `mask` (B, T) says which tokens are no padding;
            `backward_error` (one number per site) is how far `grads` are from finite differences.
        headline_acc: `claim.accuracy`, by its published name.
        frozen_baseline_acc: `claim.frozen`, by its published name.
        claim: the accuracies to be judged; or give them by their published names.
        bp_acc: `claim.bp`.
        bp_frozen_acc: `claim.bp_frozen`.
        correct: `claim.correct`.
        method: what is measured, shown in the report.
        notes: shown in the report.
        thresholds: other limits than the published ones.
        edition: "three-check" or "four-diagnostic"; "intrinsic" stays undecided, since it runs the network again.
        reduction: what `grads` are gradients of: the "sum" of per-sample losses, or their "mean" over the batch. It has
            to be said, here or as `reduction` in the batches: no array shows it, and every ‖g‖ hangs on it. Where
            logits are a linear map of the last site, they do show it, and another answer is an error.
        pairing: as in `diagnose`, and so are `gamma_over` and `deep_over`.
        gamma_over: the sites whose cosines Γ averages.
        deep_over: the sites of the deep mean.
        pool: where states (B, T, d) are read: a token, "mean" or "readout"; by default what the last gradient shows.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0).normal
    >>> batches = [{"states": draw(size=(3, 128, 8)), "grads": draw(size=(3, 128, 8))} for _ in range(8)]
    >>> given = [{**b, "credits": -b["grads"], "reduction": "sum"} for b in batches]
    >>> report = diagnose_arrays(given, 0.6, 0.3, method="anti-BP")
    >>> report.verdict, round(report.values["gamma"], 3)
    ('passes', -1.0)
    """
    published: dict[str, Any] = {
        "headline_acc": headline_acc,
        "frozen_baseline_acc": frozen_baseline_acc,
        "bp_acc": bp_acc,
    }
    claim = Claim.given(claim, **published, bp_frozen_acc=bp_frozen_acc, correct=correct)
    texts(method=method, notes=notes)
    limits = DiagnosticThresholds() if thresholds is None else thresholds
    decide(Measurements(), claim, limits, edition)  # a wrong edition should not cost a measurement
    ways = {"pairing": pairing, "gamma_over": gamma_over, "deep_over": deep_over}
    paired, meter, reading, witness = paired_by(pairing), Meter(gamma_over, deep_over), _Reading(reduction, pool), None
    stepped = Stepped()
    for trace in track(reading.traces(batches), "measuring", length_hint(batches) or None):
        witness = witness or Witness(None, reading.has_losses, None)
        for taker in (meter, witness, stepped):
            taker.update(paired(trace))
    if witness is None:
        raise InputError(
            "Expected at least one batch of arrays, but there is none. A generator that was used up before gives "
            "nothing: pass a list or a fresh generator."
        )
    found = Found()
    meter.compute(found)
    witness.compute(found)
    stepped.compute(found)
    reading.compute(found, ways)
    return make_report(found.measurements(), claim, limits, edition, method, notes)


class _Reading:
    """Makes traces of arrays, and tells afterwards under what they were made."""

    def __init__(self, reduction: str | None, pool: int | str | None) -> None:
        if not (pool is None or isinstance(pool, int)) and not (isinstance(pool, str) and pool in ("mean", "readout")):
            raise InputError(f'Expected pool to be a token index, "mean" or "readout", but got {shown(pool)}.')
        self._reduction, self._pool, self._pool_given = reduction, pool, pool is not None
        if reduction is not None:
            one_of(REDUCTIONS, reduction=reduction)
        self._first: _Batch | None = None
        self._errors: list[list[float]] = []

    @property
    def has_losses(self) -> bool:
        """Are losses beside logits and labels, so that they can be compared with cross-entropy?"""
        return self._first is not None and {"losses", "logits", "labels"} <= self._first.keys_given

    def traces(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[Trace]:
        if isinstance(batches, (Mapping, str)) or hasattr(batches, "shape") or not isinstance(batches, Iterable):
            raise InputError(
                "Expected batches to be an iterable of dicts of arrays with states and grads, but got "
                f"{type(batches).__name__}. Wrap a single batch in a list: [{{'states': …, 'grads': …}}]."
            )
        for index, given in enumerate(batches):
            batch = _Batch.of(given, index)
            self._first = self._first or batch
            batch.refuse_unlike(self._first, index)
            self._refuse_other_reduction(batch, index)
            if batch.backward_error is not None:
                self._errors.append(batch.backward_error)
            yield self._trace(batch, index)

    def _refuse_other_reduction(self, batch: _Batch, index: int) -> None:
        """Raise an InputError unless it is said of which loss the gradients are, and nothing contradicts it."""
        kind = batch.reduction or self._reduction
        if kind is None or (self._reduction is not None and kind != self._reduction):
            what = "nothing says it" if kind is None else f"batch {index} says {kind} and the call {self._reduction}"
            raise InputError(
                f"Expected to be told whose gradients grads of batch {index} are, of the sum of per-sample losses or "
                f'of their mean over the batch, but {what}. Pass reduction="sum" or reduction="mean" (a mean loss, as '
                "training code has it, gives gradients that are smaller by the batch size)."
            )
        self._reduction = kind
        other = {"sum": "mean", "mean": "sum"}[kind]
        if batch.reduction_shown() == other:
            raise InputError(
                f"Expected grads of batch {index} to be gradients of the {kind} of per-sample losses "
                f'(reduction="{kind}"), but logits, labels and the last site show those of the {other}: pass '
                f'reduction="{other}".'
            )

    def _trace(self, batch: _Batch, index: int) -> Trace:
        states, grads, size = batch.states, batch.grads, len(batch.states[0])
        if self._reduction == "mean":
            grads = tuple(g * size for g in grads)
        deepest = grads[-1]
        if deepest.ndim == 3 and self._pool is None:
            self._pool = read_at(deepest)
        elif deepest.ndim == 3 and not self._pool_given and isinstance(self._pool, int):
            self._pool = read_still(deepest, self._pool, index)
        # What is not known has no columns, or is NaN: no formula of the accumulators reads it.
        unknown = torch.full((size,), torch.nan)
        logits = torch.empty(size, 0) if batch.logits is None else batch.logits
        losses, labels = (unknown if t is None else t for t in (batch.losses, batch.labels))
        prints = batch.prints()
        inputs = prints if batch.inputs is None else batch.inputs
        return Trace(
            states, grads, batch.credits, losses, logits, labels, inputs, prints, self._pool, index, batch.mask
        )

    def compute(self, found: Found, ways: dict[str, str]) -> None:
        """Give the conditions of arrays in place of those of a network, and what finite differences say of them."""
        known = self._first.keys_given if self._first is not None else frozenset()
        worst = [max(column) for column in zip(*self._errors)]
        found.conditions |= {
            "mode": "as given",
            "checkpoint": "arrays, as given",
            "layer_index": "sites in the order of the arrays",
            **ways,
            "reduction": self._reduction,
            "loss": "as given" if "losses" in known else "unknown",
            "reference": "arrays, as given",
            "samples_by": "inputs" if "inputs" in known else "states",
            "backward_error": max(worst, default=None),
            "torch": torch.__version__,
        }
        if not worst:
            found.reasons["backward_error"] = "gradients are taken as given: no network is there to check them by"
        wrong = [site for site, error in enumerate(worst) if not error <= BACKWARD_LIMIT]
        if wrong:
            values = {"error": max(worst), "limit": BACKWARD_LIMIT, "sites": wrong, "cause": ""}
            found.values["altered"] = Note("altered-backward", None, values)


@dataclass(frozen=True)
class _Batch:
    """One batch as tensors; None is not known."""

    states: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    credits: tuple[Tensor, ...] | None
    losses: Tensor | None
    logits: Tensor | None
    labels: Tensor | None
    inputs: Tensor | None
    mask: Tensor | None
    backward_error: list[float] | None
    reduction: str | None = None

    @property
    def keys_given(self) -> frozenset[str]:
        return frozenset(key for key in KEYS if getattr(self, key) is not None)

    def reduction_shown(self) -> str | None:
        """Return whose gradient the last one is, where cross-entropy of a linear readout tells; else None.

        With logits = h W + b, fitted to the batch, ∂(sum of losses)/∂h is (softmax − label) Wᵀ, and that of the mean is
        1/B of it.
        """
        h, g, logits, labels = self.states[-1], self.grads[-1], self.logits, self.labels
        if logits is None or labels is None or h.ndim != 2 or logits.ndim != 2 or labels.shape != logits.shape[:1]:
            return None
        size, width = h.shape
        if size < width + 2 or size < 4 or labels.is_floating_point() or not bool(torch.isfinite(logits).all()):
            return None
        x = torch.cat([h.double(), torch.ones(size, 1, dtype=torch.float64)], 1).cpu()
        z, g = logits.double().cpu(), g.double().cpu()
        fit = torch.linalg.lstsq(x, z).solution
        if not bool((x @ fit - z).norm() < 1e-3 * z.norm()):
            return None
        own = (z.softmax(1) - torch.nn.functional.one_hot(labels.long().cpu(), z.shape[1])) @ fit[:-1].T
        scale = float((own * g).sum() / own.square().sum().clamp_min(1e-300))
        if not bool((g - scale * own).norm() < 0.05 * g.norm()):
            return None
        return next((name for name, want in (("sum", 1.0), ("mean", 1 / size)) if abs(scale / want - 1) < 0.05), None)

    @staticmethod
    def of(given: Any, index: int) -> _Batch:
        """Read a dict of arrays, or raise an InputError that names what is wrong in which batch."""
        if not isinstance(given, Mapping):
            raise InputError(
                f"Expected batch {index} to be a dict of arrays with states and grads, but got {type(given).__name__}."
            )
        missing = [key for key in ("states", "grads") if given.get(key) is None]
        strange = [str(key) for key in given if key not in KEYS]
        if missing or strange:
            what = f"it has no {' and no '.join(missing)}" if missing else f"it has {shown(strange)} too"
            raise InputError(f"Expected batch {index} to have arrays by the names {', '.join(KEYS)}, but {what}.")
        sites = {
            key: tuple(_tensor(a, f"{key}[{site}] of batch {index}") for site, a in enumerate(_listed(given[key])))
            for key in PER_SITE
            if given.get(key) is not None
        }
        rest = {
            key: None if given.get(key) is None else _tensor(given[key], f"{key} of batch {index}")
            for key in ("losses", "logits", "labels", "inputs", "mask")
        }
        if rest["mask"] is not None:
            rest["mask"] = rest["mask"].bool()
        error = given.get("backward_error")
        errors = None if error is None else [float(e) for e in np.asarray(error, dtype=float).ravel()]
        reduction = given.get("reduction")
        if reduction is not None:
            one_of(REDUCTIONS, reduction=reduction)
        batch = _Batch(
            sites["states"], sites["grads"], sites.get("credits"), **rest, backward_error=errors, reduction=reduction
        )
        batch._refuse_shapes(index)
        return batch

    def _refuse_shapes(self, index: int) -> None:
        shapes = [tuple(h.shape) for h in self.states]
        if len(shapes) < 2 or any(not shape or not shape[0] or shape[0] != shapes[0][0] for shape in shapes):
            raise InputError(
                f"Expected states of batch {index} to be at least 2 arrays of (B, …), one per site, samples first, but "
                f"their shapes are {shown(shapes)}."
            )
        for key in PER_SITE:
            arrays = getattr(self, key) or ()
            whole = next((site for site, a in enumerate(arrays) if not a.is_floating_point()), None)
            if whole is not None:
                raise InputError(
                    f"Expected {key}[{whole}] of batch {index} to be floating point, but got {arrays[whole].dtype}."
                )
            if arrays and [tuple(a.shape) for a in arrays] != shapes:
                raise InputError(
                    f"Expected {key} of batch {index} to have the shapes of its states, {shown(shapes)}, but got "
                    f"{shown([tuple(a.shape) for a in arrays])}. A site without a {key[:-1]} is left out of all of "
                    "them."
                )
        for key in ("losses", "logits", "labels", "inputs", "mask"):
            array = getattr(self, key)
            if array is not None and (not array.ndim or len(array) != shapes[0][0]):
                raise InputError(
                    f"Expected {key} of batch {index} to have one row for each of {shapes[0][0]} samples, but its "
                    f"shape is {tuple(array.shape)}."
                )
        if self.losses is not None and self.losses.ndim != 1:
            raise InputError(
                f"Expected losses of batch {index} to be (B,), one per sample, but got {tuple(self.losses.shape)}."
            )
        if self.backward_error is not None and len(self.backward_error) != len(shapes):
            raise InputError(
                f"Expected backward_error of batch {index} to have one number per site, {len(shapes)}, but it has "
                f"{len(self.backward_error)}."
            )

    def refuse_unlike(self, first: _Batch, index: int) -> None:
        """Raise an InputError where a batch has other sites, or another kind of array, than the first."""
        # Tokens may differ from batch to batch: widths may not.
        ours, theirs = ([h.shape[2:] if h.ndim == 3 else h.shape[1:] for h in b.states] for b in (self, first))
        if ours != theirs:
            raise InputError(
                f"Expected the sites of every batch to have the widths of batch 0, {shown([*map(tuple, theirs)])}, but "
                f"batch {index} has {shown([*map(tuple, ours)])}."
            )
        differ = (self.keys_given ^ first.keys_given) - {"backward_error", "reduction"}
        if differ:
            raise InputError(
                f"Expected every batch to have the same arrays, but {', '.join(sorted(differ))} is not in all of them: "
                f"batch 0 has {', '.join(sorted(first.keys_given))}, batch {index} has "
                f"{', '.join(sorted(self.keys_given))}."
            )

    def prints(self) -> Tensor:
        """Return (B,) a number that recognises each sample, by its inputs or else by all of its states."""
        if self.inputs is not None:
            return prints_of(self.inputs, len(self.inputs))
        return torch.stack([fingerprints(h) * (2 * site + 1) for site, h in enumerate(self.states)]).sum(0)


def _listed(value: Any) -> Sequence[Any]:
    """Return one array per site, also of an array whose first axis are the sites."""
    if isinstance(value, Mapping):
        return list(value.values())
    if hasattr(value, "shape") and getattr(value, "ndim", 0) >= 2:
        return [value[site] for site in range(value.shape[0])]
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _tensor(value: Any, what: str) -> Tensor:
    """Return a tensor of its own memory, detached; JAX's bfloat16, which NumPy does not know, by way of float32."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.astype(np.float32)).bfloat16()
        return torch.from_numpy(np.array(array))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Expected {what} to be an array, but got {shown(value)} ({error}).") from None
