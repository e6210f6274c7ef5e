"""What an expression of a script holds, as far as its names, its imports and its own arithmetic tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

# -- kinds ---------------------------------------------------------------------------------------------------------

GRAD = "gradient"  # of a loss, or a credit
SENT = "sent"  # what a rule sends to a layer, by the rule's name
COSINE = "cosine"
BY_LAYER = "of every layer"  # in a tree or list
ERROR = "error"  # of the output, or the labels: what feedback is multiplied with
DATA = "data"  # drawn, written down or read from a data set
DRAWN = "drawn"  # (DRAWN, call): drawn by this call of a random generator
GRADS_OF = "function"  # a function that hands gradients back, jax.grad(loss)

Source = tuple[object, ...]  # stands for what a parameter, an attribute or a global gets anywhere in the file
Kind = str | Source

GRADIENT = re.compile(r"(^|_)(g|gs|grads?|gradients?|credits?|d[wW]s?|delta_?[wW]s?)\d*(_|$)", re.IGNORECASE)
# What is sent to a layer, by the rule it is of: beside a gradient, the other side of a comparison.
SENDS = re.compile(
    r"(^|_)(bp|backprop|bptt|d?fa|drtp|dtp|ep|eqprop|pc|dkp|kp|teaching|updates?|deltas?|signals?|pseudo_?grads?)\d*(_|$)",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"(^|_)(e|err|errors?|deltas?|ds?|residuals?|teach(er)?|one_?hot|ys?|ts?|targets?|labels?|top)\d*(_|$)",
    re.IGNORECASE,
)
_INPUT = re.compile(r"(^|_)(inputs?|images?|imgs|data|dataset|loader|dataloader|batches)\d*(_|$)")
_STATE = re.compile(r"(^|_)(h|hs|hiddens?|states?|streams?|activations?)\d*(_|$)")


def named(word: str) -> frozenset[Kind]:
    """Return the kinds that a name says.

    >>> sorted(named("bp_grad")), sorted(named("images"))
    (['gradient', 'sent'], ['data'])
    """
    return frozenset(kind for kind, words in _SAID if words.search(word))


def undrawn(kinds: frozenset[Kind]) -> frozenset[Kind]:
    """Return kinds without the calls that drew it."""
    return frozenset(kind for kind in kinds if not (isinstance(kind, tuple) and kind[0] == DRAWN))


def is_state(word: str) -> bool:
    """Return whether a name says that it holds states of a network."""
    return _STATE.search(word) is not None


_SAID = ((GRAD, GRADIENT), (SENT, SENDS), (DATA, _INPUT), (ERROR, _ERROR))

# -- values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Floor:
    """An ε that holds a norm up, and where it stands."""

    node: ast.expr
    epsilon: float
    by_default: bool = False  # it is torch's own


@dataclass(frozen=True, eq=False)
class Value:
    """What an expression holds. A list, dict or tree holds what its entries do."""

    key: int  # equal for what is the same vector, as h and h.double()
    kinds: frozenset[Kind] = frozenset()
    number: float | int | None = None  # what it is, where that is written down
    norms: tuple[int, ...] = ()  # the vectors whose norms are multiplied in it
    squared: bool = False  # … whose squared norms are
    inverse: bool = False  # … it is one over them
    over: tuple[int, ...] = ()  # the norms that it was divided by
    unit: bool = False  # divided by its own norm
    floors: tuple[Floor, ...] = ()  # of the norms in it
    parts: tuple[Value, ...] | None = None  # what unpacking gives
    empty: bool = False  # a list or dict to be filled
    made: ast.AST | None = None  # the class, function or module (nn.CosineSimilarity) that it is of

    def also(self, *kinds: Kind) -> Value:
        """Return it with further kinds."""
        return replace(self, kinds=self.kinds | set(kinds)) if not self.kinds.issuperset(kinds) else self

    def plain(self, key: int) -> Value:
        """Return another vector made of it: no norm, no quotient."""
        return Value(key, self.kinds - {COSINE})


def join(key: int, values: Iterable[Value]) -> Value:
    """Return what may be any of some values: it has all their kinds, and of the rest what they agree on."""
    several = [value for value in values if not value.empty]
    if not several:
        return Value(key, empty=True)
    first = several[0]
    if all(value is first for value in several):
        return first if key < 0 else replace(first, key=key)
    same = all(value.key == first.key for value in several)
    agree = all((v.norms, v.squared, v.over) == (first.norms, first.squared, first.over) for v in several)
    parts = None
    if first.parts and all(v.parts and len(v.parts) == len(first.parts) for v in several):
        parts = tuple(join(p[0].key, p) for p in zip(*(v.parts or () for v in several)))
    return Value(
        first.key if same and key < 0 else key,
        frozenset().union(*(v.kinds for v in several)),
        first.number if all(v.number == first.number for v in several) else None,
        first.norms if agree else (),
        first.squared and agree,
        first.inverse and agree,
        first.over if agree else (),
        all(v.unit for v in several),
        tuple({floor: None for v in several for floor in v.floors}),
        parts,
        False,
        first.made if all(v.made is first.made for v in several) else None,
    )


@dataclass(frozen=True, eq=False)
class Cosine:
    """A cosine that a script computes: where, of which vectors, and the ε that hold its norms up."""

    node: ast.expr
    sides: tuple[Value, Value]
    floors: tuple[Floor, ...]
    by_hand: bool = True


@dataclass(frozen=True, eq=False)
class Guard:
    """A comparison of norms with a small number."""

    floor: Floor
    norms: frozenset[int]
    small: bool  # true where the norms are small, as in `n < eps`
