"""The preset as-published: every convention that the papers leave unsaid, what it is set to, why, and by what source.

The papers are named as in `walkback.replication.published`. "figures" is arithmetic on their figures, "runs" are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Credit of one length per sample, given to the block that reads its site.
ONE_LENGTH = {"credit_site": "reader", "credit_length": "rms"}

# Rule -> fields of its RunSpec.
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "bp": {"rule": "bp"},
    "dfa": {"rule": "dfa", **ONE_LENGTH},
    "fa": {"rule": "fa", "credit_site": "reader"},
    "state-bridge": {"rule": "state-bridge", **ONE_LENGTH, "rule_options": {"form": "plain"}},
    "credit-bridge": {"rule": "credit-bridge", **ONE_LENGTH, "rule_options": {"label": False}},
    "ep": {"rule": "ep", "rule_options": {"beta": 1e-4}},  # 10 steps by default: more than L reach every site
}
# Networks whose published form is not our default: name -> options.
NETWORKS: dict[str, dict[str, Any]] = {"small-cnn": {"preactivation": True}}

# How measured numbers are read: the arguments of `walkback.diagnose`, and which of the nudging steps is meant.
READING = {"pairing": "site", "gamma_over": "0..L-1", "deep_over": "1..L", "nudging": "nudging_rms"}
SHIFTED = ("fa",)  # rules read with pairing="shifted"
# The one frozen control over which the documents take the gains of a data set or network: the rule of its stem.
CONTROL = {"rule": "dfa"}  # d=256, L=4, 100 epochs, for every rule, width and length of training on CIFAR-10
CONTROLS = {"cifar100": {"rule": "bp", "data": "cifar100"}, "vit-mini": {"rule": "bp", "net": "vit-mini", "epochs": 30}}


@dataclass(frozen=True)
class Choice:
    """One convention of the preset.

    Args:
        convention: what is chosen.
        option: where it is set: a field of RunSpec, an argument of `diagnose`, a function.
        choice: what the preset says.
        ours: what our default is.
        source: the documents, "figures" or "runs".
        reason: why.
    """

    convention: str
    option: str
    choice: str
    ours: str
    source: str
    reason: str


CHOICES = (
    Choice(
        "length of a sample's credit", "credit_length", "√d (rms) for DFA and the bridges; FA and EP raw", "raw",
        "figures, runs",
        "errors of one length do not cancel at the readout's optimum, so DFA's stream explodes as published; FA's "
        "published stream is four orders of magnitude shorter. √d and 1 differ under a penalty only, which √d makes 16 "
        "times weaker",
    ),
    Choice(
        "who gets a credit", "credit_site", "the block that reads the site; EP the module that writes it",
        "the module that writes it", "004, runs",
        "004 writes ⟨f_l(h_l), a_l⟩; with it DFA's deep cosines are zero, as published",
    ),
    Choice(
        "pairing of cosines", "pairing", "by site; FA one site off", "by site", "figures",
        "only a shifted list of FA ends in 0.95: its last term is cos(g_L, g_{L−1})",
    ),
    Choice(
        "Γ", "gamma_over", "sites 0…L−1", "sites 0…L−1", "figures",
        "DFA: 0.42/4 = 0.105 at L = 4 and 0.39/2 = 0.195 at L = 2",
    ),
    Choice(
        "deep mean", "deep_over", "sites 1…L; of FA, shifted, 1…L−1", "sites 1…L, without an exact one", "001, 002",
        "both name layers 1 to 4 of DFA; (0 + 0 + 0.95)/3 = 0.317 is FA's published 0.325",
    ),
    Choice(
        "step of nudging", "nudging_rms", "η√d", "η, and η√d beside it", "figures",
        "the published nudge over 0.01·cos·128‖g‖ is 19 for FA and 20 for DFA, and √256 = 16",
    ),
    Choice(
        "penalty over features", "penalty_over", "sum", "sum", "004", "written λ‖f_l‖²; a mean is not excluded",
    ),
    Choice(
        "penalty on the stem", "penalty_stem", "no", "no", "004, figures",
        "it is on each residual block; ‖h_L‖ hardly falls with λ, since the stem is free",
    ),
    Choice(
        "frozen control", "control_spec", "one for all rules: DFA's stem on CIFAR-10, BP's on CIFAR-100 and ViT-Mini",
        "each run's own, stem trained by the rule, BP's beside it", "000, figures, runs",
        "every published gain is an accuracy less 0.349, 0.178 or 0.570, whatever rule, width and epochs. 0.349 is "
        "that of a DFA-trained stem of credit length √d; the other two are BP's. Flags and verdicts of ours keep each "
        "run's own control",
    ),
    Choice(
        "State Bridge", "rule_options.form", "plain: G reads the raw state, squared error", "scale-free", "runs",
        "the one form that explodes; not found: its accuracy is below the published one",
    ),
    Choice(
        "Credit Bridge", "rule_options.label", "V does not see the label", "V sees it", "004, runs",
        "written V(h_l, t_l); it explodes; not found: its accuracy is below the published one",
    ),
    Choice(
        "EP", "rule_options.beta", "β 1e-4, 10 steps, step 0.2, raw credit of the site a module writes",
        "β 0.5, 2 steps", "runs",
        "no document states them. More than L steps reach every site, but so weak a nudge leaves float32 little of the "
        "credit but rounding, at site 0 next to none. Then Γ, accuracy and ‖g_L‖ come near the published ones; not "
        "found: ‖h_L‖ and ρ stay below, and the stability above",
    ),
    Choice(
        "SmallCNN", "net_options.preactivation", "norm and ReLU before each convolution", "norm at the branch's end",
        "runs", "a branch that ends in a BatchNorm can't grow, and (a) is published to fire",
    ),
)  # fmt: skip
