"""`walkback train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from walkback.cli.options import FLAT, Device, Flag, Root, Whole, json_object
from walkback.cli.output import answer, print_text, stdout_to_stderr, warn
from walkback.registry import names_in


def _names(*tables: tuple[str, str]) -> Parameter:
    """Return what a folder offers, as a help text."""
    names = [name for folder, table in tables for name in names_in(f"walkback.{folder}", table)]
    return Parameter(help=f"{', '.join(names)}, or `module:function`.")


@dataclass(frozen=True)
class Recipe:
    """What a RunSpec takes as it stands here.

    Args:
        scope: frozen leaves the blocks at their random initialisation: the control of D3.
        epochs: Passes over the training split.
        seed: Of initialisation, feedback, order and augmentation.
        penalty: λ of λ‖f‖² for every block.
        penalty_over: Whether the squares of all features are added up or averaged.
        penalty_stem: Penalise what the stem writes as well.
        augment: Random flips and crops.
        credit_site: Whether a block gets the credit of the site it writes or of the one it reads.
        credit_length: Length of every sample's credit: as the rule gives it, 1, or √d.
    """

    net: Annotated[str, _names(("nets", "NETS"))] = "resmlp"
    rule: Annotated[str, _names(("rules", "RULES"))] = "bp"
    data: Annotated[str, _names(("data", "EMBEDDED"), ("data", "SOURCES"))] = "cifar10"
    scope: Literal["all", "frozen"] = "all"
    epochs: Whole = 100
    seed: Whole = 42
    penalty: float = 0.0
    augment: Flag = False
    penalty_over: Literal["sum", "mean"] = "sum"
    penalty_stem: Flag = False
    credit_site: Literal["writer", "reader"] = "writer"
    credit_length: Literal["raw", "unit", "rms"] = "raw"


@dataclass(frozen=True)
class Optimiser:
    """The optimiser of a RunSpec.

    Args:
        lr: Learning rate of AdamW.
        weight_decay: Of AdamW.
        batch_size: Of training.
        schedule: Of the learning rate.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    batch_size: Whole = 128
    schedule: Literal["cosine", "constant"] = "cosine"


def train(
    *,
    recipe: Annotated[Recipe, FLAT] = Recipe(),  # noqa: B008
    optimiser: Annotated[Optimiser, FLAT] = Optimiser(),  # noqa: B008
    net_options: str = "{}",
    rule_options: str = "{}",
    root: Root = None,
    out: Path = Path("runs"),
    device: Device = "cpu",
    json: Flag = False,
) -> int:
    """Train one network with one rule, measured after every epoch; goes on where it was stopped.

    Args:
        net_options: Keywords of the network, as JSON: '{"width": 512}'.
        rule_options: Keywords of the rule, as JSON.
        out: The store of runs; this one goes into a folder of its own.
        json: Print the report as JSON.
    """
    from walkback.audit import store
    from walkback.audit.run import sigterm_interrupts
    from walkback.training.loop import train as trained
    from walkback.training.spec import RunSpec

    spec = RunSpec(
        **asdict(recipe),
        net_options=json_object("--net-options", net_options),
        rule_options=json_object("--rule-options", rule_options),
        optimiser=asdict(optimiser),
    )
    try:
        with stdout_to_stderr(), sigterm_interrupts():
            bundle = trained(spec, out, root=root, device=device)
    except KeyboardInterrupt:
        done = store.progress(out, spec).get("epoch", 0)
        saved = (
            f"{done} of {spec.epochs} epochs of {spec.name} are saved in {out}; the same command goes on from there."
        )
        warn(saved if done else "No epoch was finished: the same command starts anew.")
        raise
    report = bundle.report()
    assert report is not None  # its presence is what makes a run finished
    answer(report, True) if json else print_text(f"{report}\n\n{bundle.path}")
    return 0
