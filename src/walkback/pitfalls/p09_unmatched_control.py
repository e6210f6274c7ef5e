"""A frozen control that was trained for fewer epochs makes unused depth look used."""

from __future__ import annotations

import ast

from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script, keyword, literal
from walkback.pitfalls.trained import train

PITFALL = Entry(9, "unmatched-control", "depth is compared with a control that trained for less", "lint, report")

_RECIPE = ("epochs", "n_epochs", "num_epochs", "lr", "batch_size", "net", "model", "data", "dataset", "width", "seed")


def detect(script: Script) -> Found:
    """Find a frozen run whose recipe is that of no other run in the script."""
    runs: dict[str, list[tuple[ast.Call, bool]]] = {}
    for call in script.calls():
        if name := script.name(call.func):
            runs.setdefault(name, []).append((call, _is_frozen(call)))
    for calls in runs.values():
        others = [_recipe(call) for call, frozen in calls if not frozen]
        for call, frozen in calls:
            differences = [_differ(_recipe(call), other) for other in others] if frozen else []
            if differences and all(differences):
                listed = ", ".join(f"{k} {ours} instead of {theirs}" for k, ours, theirs in min(differences, key=len))
                yield (
                    call,
                    f"the frozen control is trained otherwise than what it is compared with: {listed}",
                    "train it with the same recipe; walkback.frozen_baseline(spec) does",
                )


def _is_frozen(call: ast.Call) -> bool:
    values = [literal(a) for a in (*call.args, *(k.value for k in call.keywords))]
    flag = keyword(call, "frozen", "freeze", "freeze_blocks", "frozen_blocks")
    return "frozen" in values or literal(flag) is True


def _recipe(call: ast.Call) -> dict[str | None, object]:
    return {k.arg: k.value.value for k in call.keywords if k.arg in _RECIPE and isinstance(k.value, ast.Constant)}


def _differ(ours: dict[str | None, object], theirs: dict[str | None, object]) -> list[tuple[object, object, object]]:
    return [(key, ours[key], theirs[key]) for key in ours if key in theirs and ours[key] != theirs[key]]


def accuracies(seed: int) -> tuple[float, float, float]:
    """Return the accuracies of DFA, its matched control, and a control with a sixth of the epochs."""
    run = train("dfa", epochs=6, seed=seed)
    matched = train("dfa", "frozen", epochs=6, seed=seed)
    short = train("dfa", "frozen", epochs=1, seed=seed)  # walkback: ignore[P09]
    return run.accuracy, matched.accuracy, short.accuracy


def show(seed: int = 0) -> Shown:
    """Return the depth margin against both controls."""
    ours, matched, short = accuracies(seed)
    return Shown(
        "depth margin, pp",
        100 * (ours - short),
        100 * (ours - matched),
        f"accuracy {ours:.3f}; frozen blocks after as many epochs {matched:.3f}, after a sixth of them {short:.3f}. "
        "Only the blocks may differ between a network and its control.",
    )
