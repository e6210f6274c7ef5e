"""Which runs belong together: settings by the fields of their specs, judged over their seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from walkback.audit.plans import RULE_OPTIONS
from walkback.audit.records import Record, Records, canonical
from walkback.audit.seeds import last, over_seeds, reopened
from walkback.measures.measurements import Measurements
from walkback.report.table import Stat, stat
from walkback.training.spec import Optimiser, RunSpec
from walkback.verdict.checks import DiagnosticThresholds, Finding, depth_of_claim
from walkback.verdict.claim import accuracies
from walkback.verdict.editions import Claim, Verdict, decide
from walkback.verdict.statistics import Estimate, mean_worth

RULES = {
    "bp": "BP",
    "fa": "FA",
    "dfa": "DFA",
    "state-bridge": "State Bridge",
    "credit-bridge": "Credit Bridge",
    "ep": "EP",
}
# Rules of the field beyond the papers': they have a line where there are runs of them.
FIELD_RULES = {
    "drtp": "DRTP",
    "usf": "Sign-symmetry, uSF",
    "frsf": "Sign-symmetry, frSF",
    "brsf": "Sign-symmetry, brSF",
    "kolen-pollack": "Kolen–Pollack",
    "weight-mirror": "Weight mirror",
}
LABELS = RULES | FIELD_RULES
# Options that take a rule's learning away: such runs are its ablation, and in no table.
ABLATIONS = {"fresh": True, "train": False, "steps": 0}

# A run of BP that others are compared with: our own conventions, no penalty.
OWN: dict[str, Any] = {
    "penalty": 0.0, "penalty_over": "sum", "penalty_stem": False, "credit_site": "writer", "credit_length": "raw",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What a row of a table asks for: many fields, since they are those of a spec but the seed.

    With `any_epochs` the longest runs there are; `epochs` is then what the command for a missing one says.
    """

    rule: str
    net: str = "resmlp"
    net_options: tuple[tuple[str, Any], ...] = ()  # what differs from the network's defaults, sorted
    data: str = "cifar10"
    scope: str = "all"
    penalty: float = 0.0
    epochs: int = 100
    augment: bool = False
    credit_site: str = "writer"
    any_epochs: bool = False
    unit: bool = False  # every sample's credit has length 1
    credit_length: str = "raw"
    penalty_over: str = "sum"
    penalty_stem: bool = False

    @property
    def rule_options(self) -> dict[str, Any]:
        """The papers' options of the rule, and those that the setting adds."""
        return {**RULE_OPTIONS.get(self.rule, {}), **({"unit": True} if self.unit else {})}

    def spec(self, seed: int) -> RunSpec:
        """Return the run of one seed, with the papers' options of its rule."""
        same = {name: getattr(self, name) for name in _SHARED}
        return RunSpec(**same, net_options=dict(self.net_options), rule_options=self.rule_options, seed=seed)


# Fields of a Setting that are those of its specs.
_SHARED = tuple(f.name for f in fields(Setting) if f.name in RunSpec.model_fields and f.name != "net_options")


def setting_of(spec: RunSpec) -> Setting | None:
    """Return the setting a run belongs to; None for ablations and for another optimiser."""
    if spec.optimiser != Optimiser() or any(spec.rule_options.get(k) == v for k, v in ABLATIONS.items()):
        return None
    return _setting(spec)


def _setting(spec: RunSpec) -> Setting:
    same, options = {name: getattr(spec, name) for name in _SHARED}, canonical(spec).net_options
    plain = sorted((k, v if isinstance(v, (str, int, float)) else json.dumps(v)) for k, v in options.items())
    return Setting(**same, net_options=tuple(plain), unit=spec.rule_options.get("unit") is True)


@lru_cache(maxsize=4)
def _groups(records: Records) -> dict[Setting, dict[str, list[Record]]]:
    """Group runs: setting -> options of the rule -> its runs."""
    groups: dict[Setting, dict[str, list[Record]]] = {}
    for run in records:
        setting = setting_of(run.spec)
        if setting is not None:
            options = json.dumps(canonical(run.spec).rule_options, sort_keys=True)
            groups.setdefault(setting, {}).setdefault(options, []).append(run)
    return groups


def select(records: Records, setting: Setting) -> tuple[Record, ...]:
    """Return the runs of a setting, one per seed, by seed.

    Options of a rule are not mixed. The papers' ones are taken; of a rule that is not theirs, those with most seeds.
    """
    groups = _groups(records)
    if setting.any_epochs:
        asked = replace(setting, any_epochs=False)
        longest = max((s.epochs for s in groups if replace(s, epochs=setting.epochs) == asked), default=setting.epochs)
        setting = replace(asked, epochs=longest)
    by_options = groups.get(setting, {})
    runs = by_options.get(json.dumps(setting.rule_options, sort_keys=True), [])
    if not runs and setting.rule not in RULES:
        runs = max(by_options.items(), key=lambda kv: (len(kv[1]), kv[0]), default=("", []))[1]
    one_per_seed = {run.spec.seed: run for run in reversed(runs)}
    records.asked.update(run.path for run in one_per_seed.values())
    return tuple(sorted(one_per_seed.values(), key=lambda run: run.spec.seed))


def shorter(setting: Setting, runs: Sequence[Record]) -> bool:
    """Return whether the runs that stand for a setting were trained for fewer epochs than it asks for."""
    return any(run.spec.epochs < setting.epochs for run in runs)


def known_settings(records: Records) -> tuple[Setting, ...]:
    """Return the settings of which there are runs."""
    return tuple(_groups(records))


def left_out(records: Records) -> tuple[str, ...]:
    """Return the runs that no table has asked for so far: other strengths, networks, optimisers, options of a rule."""
    return tuple(run.path.name for run in records if run.path not in records.asked)


# -- judging ---------------------------------------------------------------------------------------------------


VALUES = {
    "acc": lambda r: r.accuracy,
    "gamma": lambda r: r.measurements.gamma,
    "h_norm": lambda r: last(r.measurements.h_norm),
    "g_norm": lambda r: last(r.measurements.g_norm),
    "growth": lambda r: r.measurements.growth,
    "stability": lambda r: r.measurements.stability,
    "deep_cosine": lambda r: r.measurements.deep_cosine,
    "perturbation": lambda r: r.report.values.get("deep_perturbation"),
    "nudging": lambda r: r.report.values.get("deep_nudging"),
    "nudging_relative": lambda r: r.report.values.get("deep_nudging_relative"),
    "train_loss_delta": lambda r: r.report.run.get("train_loss_delta"),
}


@dataclass(frozen=True)
class Judged:
    """A setting over its seeds: every run on its own for growth and reference, all together for depth."""

    setting: Setting
    runs: tuple[Record, ...]  # one per seed
    depth: Finding | None  # D3 against the matched control (stem by the rule), None for a control itself
    depth_bp: Finding | None  # D3 against the control with a BP-trained stem
    verdicts: dict[str, tuple[Verdict, ...]]  # edition -> one per run, each with the depth finding of all seeds
    pooled: dict[str, Verdict] = field(default_factory=dict)  # edition -> that of the mean over seeds, which decides
    paired: tuple[int, int] = (0, 0)  # how many runs have the matched control, and the one with a BP-trained stem

    def stat(self, what: str) -> Stat | None:
        """Return a quantity of VALUES over the seeds."""
        return stat(VALUES[what](run) for run in self.runs)

    def flagged(self, name: str) -> list[bool | None]:
        """Return whether "growth" or "reference" flags, by seed."""
        return [v[name].flagged for v in self.verdicts["three-check"]]

    def word(self, edition: str) -> str | None:
        """Return the verdict over all seeds: that of their mean, with its interval. None without runs."""
        return self.pooled[edition].verdict if edition in self.pooled else None

    def failed(self, edition: str) -> dict[str, int]:
        """Check -> on how many seeds it flags by itself, of the checks by which the mean walks the claim back."""
        if edition not in self.pooled:
            return {}
        flags = Counter(f.check for verdict in self.verdicts[edition] for f in verdict.findings if f.flagged)
        return {check: flags[check] for check in sorted(self.pooled[edition].failed)}

    @property
    def decides(self) -> str:
        """Which check of depth the verdict over all seeds rests on: "depth", or "outcome" where D3 was not tested."""
        over = self.pooled.get("three-check")
        return "outcome" if not self.tested and over is not None and "outcome" in over.names else "depth"

    @property
    def p(self) -> float | None:
        """How likely a gain so far from the margin would be at the margin; None where depth was not tested."""
        found = self._deciding
        return found.p if found is not None and (found.flagged is not None or found.straddles) else None

    @property
    def decided(self) -> bool:
        """Whether depth is decided over all seeds, by D3 or where that was not tested by D3-outcome."""
        return self._deciding is not None and self._deciding.flagged is not None

    @property
    def _deciding(self) -> Finding | None:
        return self.pooled["three-check"]["outcome"] if self.decides == "outcome" else self.depth

    def without_depth(self, reason: str, level: float = 0.05) -> Judged:
        """Return the same with depth undecided, for a reason, and what would bring its p-value under a level."""
        was = self._deciding
        assert was is not None
        if self.decides == "outcome":
            of = mean_worth([run.depth for run in self.runs if run.depth is not None])
        else:
            right = self.runs[0].correct if self.runs else None
            counts = {"seeds": self.paired[0], "samples": 0 if right is None else len(right)}
            of = Estimate(was.value or 0.0, was.interval, was.parts or {}, counts)
        more = of.more(was.limit, level) if of.parts else None
        reason = f"{reason} ({of.what_decides(was.limit, level)})" if of.parts else reason
        depth = replace(was, flagged=None, reason=reason, cause="straddles", more=more)
        pooled = {edition: reopened(v, self.decides, reason, more) for edition, v in self.pooled.items()}
        return replace(self, pooled=pooled, **({} if self.decides == "outcome" else {"depth": depth}))

    @property
    def tested(self) -> bool:
        """Whether depth was tested at all, or could not be."""
        return self.depth is not None and (self.depth.flagged is not None or self.depth.straddles)


@lru_cache(maxsize=512)
def judged(records: Records, setting: Setting, thresholds: DiagnosticThresholds | None = None) -> Judged:
    """Judge a setting in both editions."""
    runs = select(records, setting)
    like = replace(setting, epochs=runs[0].spec.epochs, any_epochs=False) if runs else setting
    bp = select(records, replace(like, rule="bp", unit=False, **OWN))
    return _judge(records, setting, runs, bp, thresholds or DiagnosticThresholds())


@lru_cache(maxsize=4)
def alike(records: Records) -> dict[RunSpec, tuple[Record, ...]]:
    """Group all runs by all but their seed: spec with seed 0 -> its runs, by seed."""
    groups: dict[RunSpec, list[Record]] = {}
    for run in records:
        groups.setdefault(seedless(canonical(run.spec)), []).append(run)
    return {spec: tuple(sorted(runs, key=lambda run: run.spec.seed)) for spec, runs in groups.items()}


def judged_runs(records: Records, runs: Sequence[Record], thresholds: DiagnosticThresholds | None = None) -> Judged:
    """Judge one run, or some that differ in their seed only, whatever their options and optimiser."""
    spec = runs[0].spec
    return _judge(records, _setting(spec), tuple(runs), _bp_like(records, spec), thresholds or DiagnosticThresholds())


def claimed(records: Records, run: Record) -> Claim:
    """Return what a run claims, held against its matched control and BP in the same setting, as `judged_runs` does."""
    return _claim(records, [run], "rule", _reference(records, _bp_like(records, run.spec)))


def _bp_like(records: Records, spec: RunSpec) -> tuple[Record, ...]:
    return alike(records).get(seedless(canonical(spec), rule="bp", rule_options={}, **OWN), ())


def _reference(records: Records, bp: Sequence[Record]) -> tuple[list[float], list[float]] | None:
    """Return the accuracies of runs of BP and of their own controls."""
    known = [(run.accuracy, control.accuracy) for run in bp if (control := records.control(run)) is not None]
    return ([a for a, _ in known], [b for _, b in known]) if known else None


def seedless(spec: RunSpec, **other: Any) -> RunSpec:
    """Return a spec with seed 0, and with these other fields."""
    return RunSpec(**{**spec.model_dump(), "seed": 0, **other})


def _judge(
    records: Records, setting: Setting, runs: tuple[Record, ...], bp: Sequence[Record], limits: DiagnosticThresholds
) -> Judged:
    """Judge the runs of a setting; `bp`, its BP runs without a penalty, tell whether its task can show depth."""
    if setting.scope == "frozen":
        return Judged(setting, runs, None, None, {"three-check": (), "four-diagnostic": ()})
    reference = _reference(records, bp)
    claim, claim_bp = (_claim(records, runs, stem, reference) for stem in ("rule", "bp"))
    claims = [claim if run.depth is None else replace(claim, depth=run.depth) for run in runs]
    together, worths = claim, [run.depth for run in runs if run.depth is not None]
    if worths and len(worths) == len(runs):  # the mean of some seeds alone would leave the others out
        together = replace(claim, depth=worths[0] if len(worths) == 1 else tuple(worths))
    verdicts = {
        edition: tuple(decide(run.measurements, with_depth, limits, edition) for run, with_depth in zip(runs, claims))
        for edition in ("three-check", "four-diagnostic")
    }
    depth, depth_bp = (depth_of_claim("D3", Measurements(), limits, c) for c in (claim, claim_bp))
    pooled = {
        edition: decide(over_seeds([run.measurements for run in runs]), together, limits, edition)
        for edition in verdicts
        if runs
    }
    return Judged(setting, runs, depth, depth_bp, verdicts, pooled, (_pairs(claim), _pairs(claim_bp)))


def _pairs(claim: Claim) -> int:
    return 0 if claim.frozen is None else len(accuracies("frozen_baseline_acc", claim.frozen))


def _claim(
    records: Records, runs: Sequence[Record], stem: str, reference: tuple[list[float], list[float]] | None
) -> Claim:
    pairs = [(run, control) for run in runs if (control := records.control(run, stem)) is not None]
    if not pairs:
        return Claim(accuracy=[run.accuracy for run in runs] or None)
    bp, bp_frozen = reference or (None, None)
    headline, frozen = ([run.accuracy for run in side] for side in zip(*pairs))
    known = [both_correct(*pair) for pair in pairs]
    both_known = [both for both in known if both is not None]
    correct = None if len(both_known) < len(known) else both_known[0] if len(both_known) == 1 else both_known
    return Claim(headline, frozen, bp, bp_frozen, correct)


def both_correct(run: Record, control: Record) -> tuple[Any, Any] | None:
    """Return which test samples a run and its control have right; None where one of them does not tell."""
    return None if run.correct is None or control.correct is None else (run.correct, control.correct)
