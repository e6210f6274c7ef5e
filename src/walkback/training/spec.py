"""RunSpec: everything that decides a training run. Same spec, same bytes; its hash names the run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from walkback.errors import InputError, shown
from walkback.registry import modules_named

MOST = 8  # mistakes of one spec that are named
# Of spec.json, of a run and of a bundle.
SCHEMA = "walkback.bundle/1"
# What frozen blocks have no use for.
NO_LOCAL_LOSS = {"penalty", "penalty_over", "penalty_stem", "credit_site"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Optimiser(_Frozen):
    """AdamW with a schedule that is set once per epoch."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    batch_size: int = Field(default=128, ge=1)


# Many fields, since all that decides a training is in its digest.
class RunSpec(_Frozen):
    """One training run.

    Args:
        net: a name of `walkback.nets` or `module:function`.
        data: a name of `walkback.data` or `module:function`.
        rule: a name of `walkback.rules` or `module:function`.
        scope: "all" trains everything; "frozen" leaves the blocks at their initialisation (the control of D3).
        penalty: λ of λ‖f_l‖², averaged over samples, for every block.
        penalty_over: "sum" adds the squares of all features up, "mean" averages them.
        penalty_stem: penalise what the stem writes as well.
        epochs: passes over the training split.
        seed: of the initialisation, the feedback, the order and the augmentation.
        augment: horizontal flip and a crop after padding by 4, per sample.
        credit_site: "writer" gives a block the credit of the site it writes, "reader" of the site it reads.
        credit_length: of every sample's credit at every site: "raw" as the rule gives it, "unit" 1, "rms" √d (each
            of its d entries is 1 in the root mean square).
        net_options: keywords of the network.
        rule_options: keywords of the rule.
        optimiser: see Optimiser.

    >>> RunSpec(rule="dfa", seed=1).name.rpartition("-")[0]
    'resmlp-cifar10-dfa-all-s1'
    """

    net: str = "resmlp"
    data: str = "cifar10"
    rule: str = "bp"
    scope: Literal["all", "frozen"] = "all"
    penalty: float = Field(default=0.0, ge=0)
    penalty_over: Literal["sum", "mean"] = "sum"
    penalty_stem: bool = False
    epochs: int = Field(default=100, ge=1)
    seed: int = Field(default=42, ge=0, lt=2**63)
    augment: bool = False
    credit_site: Literal["writer", "reader"] = "writer"
    credit_length: Literal["raw", "unit", "rms"] = "raw"
    net_options: dict[str, Any] = Field(default_factory=dict)
    rule_options: dict[str, Any] = Field(default_factory=dict)
    optimiser: Optimiser = Field(default_factory=Optimiser)

    @field_validator("net", "data", "rule")
    @classmethod
    def _no_path(cls, name: str) -> str:
        if not name.isprintable() or "/" in name or os.sep in name:  # the run's folder is named after it
            raise ValueError("a name without slashes and control characters")
        return name

    @field_validator("net_options", "rule_options")
    @classmethod
    def _json(cls, options: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(options, allow_nan=False)
        except TypeError as error:
            raise ValueError(str(error)) from None
        return options

    def __init__(self, **fields: Any) -> None:
        plain = {k: v.item() if getattr(v, "ndim", None) == 0 else v for k, v in fields.items()}  # NumPy's numbers
        try:
            super().__init__(**plain)
        except ValidationError as error:
            wrong = [_explain(e) for e in error.errors()]
            more = [f"And {len(wrong) - MOST} more."] if len(wrong) > MOST else []
            raise InputError("\n".join(wrong[:MOST] + more)) from None

    @property
    def digest(self) -> str:
        """16 hex digits of what differs from the defaults, so that a new field with a default renames nothing."""
        text = json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """Readable start, unique end: the folder of the run."""
        parts = [self.net, self.data, self.rule, self.scope, f"s{self.seed}", self.digest]
        return "-".join(p.replace(":", ".") for p in parts)

    @property
    def modules(self) -> frozenset[str]:
        """The modules of the user's that the run imports: those of its network, data and rule."""
        return modules_named(self.net, self.data, self.rule)

    @property
    def conventions(self) -> list[str]:
        """What differs from our own conventions of credit and penalty, in a word each."""
        differing = {
            "reader": self.credit_site == "reader",
            f"{self.credit_length} credit": self.credit_length != "raw",
            "λ per feature": self.penalty_over == "mean",
            "λ on the stem": self.penalty_stem,
        }
        return [word for word, differs in differing.items() if differs]

    def __hash__(self) -> int:
        return hash(self.digest)


def _explain(error: Any) -> str:
    where = ".".join(str(p) for p in error["loc"])
    if error["type"] == "extra_forbidden":
        known = ", ".join(RunSpec.model_fields)
        return f"Expected a spec with the fields {known}, but got {shown(where)}."
    return f"Expected {where}: {error['msg'].lower()}, but got {shown(error['input'])}."


def control_spec(spec: RunSpec, stem: str = "rule") -> RunSpec:
    """Return the spec of the control: same network, data, epochs, optimiser and seed.

    Args:
        spec: the run to be matched.
        stem: "rule" trains the stem as the run does, so that only the blocks differ (D3's default);
            "bp" with the exact gradient through the frozen blocks, usually the stronger control.

    >>> control_spec(RunSpec(rule="dfa", penalty=1e-2)).scope
    'frozen'
    """
    if not isinstance(spec, RunSpec):
        raise InputError(
            f"Expected a RunSpec, the run to be matched, but got a {type(spec).__name__}. Make one: "
            "RunSpec(net=…, data=…, rule=…), where net may be your own module:function. For a network and training "
            "code of your own: frozen_baseline(build, train)."
        )
    if stem not in ("rule", "bp"):
        raise InputError(f'Expected stem to be "rule" or "bp", but got {shown(stem)}.')
    # Frozen blocks have no local loss, so neither a penalty nor the credit's site means anything to the control.
    fields = {**spec.model_dump(exclude=NO_LOCAL_LOSS), "scope": "frozen"}
    if stem == "bp":
        fields |= {"rule": "bp", "rule_options": {}, "credit_length": "raw"}
    return RunSpec(**fields)


def schema_of(table: object) -> str:
    """Return the schema that a file names, or what it holds where that is no object."""
    return str(table.get("schema")) if isinstance(table, dict) else type(table).__name__


def run_fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a spec.json has of a RunSpec."""
    return {k: v for k, v in table.items() if k not in ("schema", "input_shape", "classes")}
