"""Learning rules by name. A rule gives every site its credit; training and measuring use the same object."""

from __future__ import annotations

from typing import Any

from walkback.errors import InputError
from walkback.registry import call_entry, gathered, is_entry, known_name, known_options
from walkback.rules.bp import BP as BP
from walkback.rules.credit_bridge import CreditBridge as CreditBridge
from walkback.rules.dfa import DFA as DFA
from walkback.rules.drtp import DRTP as DRTP
from walkback.rules.ep import EP as EP
from walkback.rules.fa import FA as FA
from walkback.rules.rule import Parts as Parts
from walkback.rules.rule import Rule as Rule
from walkback.rules.rule import declares as declares
from walkback.rules.rule import set_up as set_up
from walkback.rules.sign_symmetry import BRSF as BRSF
from walkback.rules.sign_symmetry import FRSF as FRSF
from walkback.rules.sign_symmetry import USF as USF
from walkback.rules.state_bridge import StateBridge as StateBridge
from walkback.rules.weight_mirror import KolenPollack as KolenPollack
from walkback.rules.weight_mirror import WeightMirror as WeightMirror

RULES: dict[str, type[Rule]] = gathered(__name__, "RULES")


def make(name: str, /, **options: Any) -> Rule:
    """Return a rule by name, or by `module:function`.

    >>> make("dfa", scale=0.5).scale
    0.5
    """
    if is_entry(name):
        rule = call_entry(name, **options)
        if not isinstance(rule, Rule):
            raise InputError(f"Expected {name} to return a walkback.rules.Rule, but got {type(rule).__name__}.")
        return rule
    made = RULES[known_name("rule", name, RULES)]
    known_options("rule_options", name, made, options)
    return made(**options)
