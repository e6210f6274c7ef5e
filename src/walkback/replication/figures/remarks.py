"""The sentences under a figure: what it has no runs of, what its axes do not show, what tells its panels apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from walkback.audit.plans import SEEDS
from walkback.errors import InputError


def missing_note(absent: Iterable[tuple[str, str]], seeds: Iterable[tuple[str, str, int]] = (), *first: str) -> str:
    """Return the line under a figure: remarks, what it has no runs of, and where seeds are missing.

    Args:
        absent: (setting, rule); all of a setting where the rule is empty.
        seeds: (setting, rule, number of seeds) of what is drawn.
        first: sentences before it.

    >>> missing_note([("plain", "EP"), ("plain", "FA")], [("plain", "DFA", 2), ("plain", "BP", 3)])
    'No runs yet: plain: EP, FA. Fewer than 3 seeds: plain: DFA (2).'
    """
    sentences = [text for text in first if text]
    known: dict[str, dict[str, int]] = {}
    for where, rule, n in seeds:
        known.setdefault(where, {})[rule] = n
    few = {where: {rule: n for rule, n in by.items() if n < len(SEEDS)} for where, by in known.items()}
    lists = {
        "No runs yet": _grouped(absent),
        f"Fewer than {len(SEEDS)} seeds": [_seeds(where, by, known[where]) for where, by in few.items() if by],
    }
    return " ".join([*sentences, *(f"{head}: {'; '.join(items)}." for head, items in lists.items() if items)])


def told_apart(settings: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, list[str]]:
    """Return a line under a figure, and the headings of its panels: rules, with what tells settings of one rule apart.

    Args:
        settings: (rule, the words of its setting).

    >>> told_apart([("FA", ["resmlp", "reader"]), ("BP", ["resmlp"])])
    ('All: resmlp. FA: reader.', ['FA', 'BP'])
    >>> told_apart([("FA", ["resmlp", "plain"]), ("FA", ["resmlp", "augmented"])])
    ('All: resmlp.', ['FA, plain', 'FA, augmented'])
    """
    rules = [rule for rule, _ in settings]
    shared = [word for word in settings[0][1] if all(word in words for _, words in settings)]
    own = [", ".join(word for word in words if word not in shared) for _, words in settings]
    alone = len(set(rules)) == len(rules)
    under = [("All", ", ".join(shared)), *(zip(rules, own) if alone else ())]
    line = " ".join(f"{who}: {words}." for who, words in under if words)
    return line, rules if alone else [", ".join(filter(None, pair)) for pair in zip(rules, own)]


def off_axis(what: str, found: Iterable[tuple[str, str, float | None]]) -> str:
    """Return what of a quantity its log axis does not show.

    Args:
        found: (setting, rule, value), None where nothing was measured.

    >>> off_axis("‖g_L‖", [("plain", "BP", 1e-3), ("plain", "DFA", 0.0), ("plain", "FA", None)])
    '‖g_L‖ is 0, which a log axis does not show: plain: DFA. ‖g_L‖ was not measured: plain: FA.'
    """
    found = list(found)
    zero = [(where, rule) for where, rule, v in found if v is not None and v <= 0]
    sentences = [f"{what} is 0, which a log axis does not show: {'; '.join(_grouped(zero))}."] if zero else []
    return " ".join([*sentences, not_measured(what, found)]).strip()


def not_measured(what: str, found: Iterable[tuple[str, str, Any]]) -> str:
    """Return of which settings and rules a quantity is None; "" where there is none.

    >>> not_measured("Γ", [("plain", "BP", 0.9), ("plain", "EP", None)])
    'Γ was not measured: plain: EP.'
    """
    which = [(where, rule) for where, rule, value in found if value is None]
    return f"{what} was not measured: {'; '.join(_grouped(which))}." if which else ""


def _grouped(absent: Iterable[tuple[str, str]]) -> list[str]:
    by: dict[str, list[str]] = {}
    for where, rule in dict.fromkeys(absent):
        by.setdefault(where, []).append(rule)
    return [f"{where}: {', '.join(rules)}" if any(rules) else where for where, rules in by.items()]


def _seeds(where: str, few: dict[str, int], known: dict[str, int]) -> str:
    """Return the number of seeds by rule, or one number where it is that of every rule of a setting."""
    if len(few) == len(known) and len(set(few.values())) == 1:
        return f"{where} ({next(iter(few.values()))})"
    return f"{where}: {', '.join(f'{rule} ({n})' for rule, n in few.items())}"


def nothing(name: str, missing: Sequence[str]) -> InputError:
    """Return the error of a figure without data; `missing` are lines "what: command" as a table lists them."""
    what, _, command = missing[0].partition(": ") if missing else ("", "", "")
    advice = f" Train {what} with: {command}" if command else ""
    return InputError(f"Expected finished runs to draw {name} from, but there are none.{advice}")
