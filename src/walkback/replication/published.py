"""The published figures, as plain data: only to be set beside ours, never to be used as ours.

Five documents describe the system and disagree in places: 000 (an outline), 001 (a first paper), 002 (a second
draft), 003 (the README of the reference implementation) and 004 (the latest paper). Every variant is kept, with its
source. ‖g‖ stands in two conventions, that of a mean loss over 128 samples and over about 1024 (`batch`): the second
is eight times smaller, and `Figure.number` converts it. Which one a document uses in which place is our reading: a
state of the network that is given in both tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = {
    "000": "outline",
    "001": "first paper",
    "002": "second draft",
    "003": "README of the reference implementation",
    "004": "latest paper",
}
PUBLISHED_BATCH, LARGE_BATCH = 128, 1024

# How a quantity is written and compared: see walkback.replication.agree.
KINDS = {
    "acc": "acc",
    "gamma": "cos",
    "cosine": "cos",
    "deep_cosine": "cos",
    "perturbation": "cos",
    "stability": "cos",
    "fresh": "cos",
    "h_norm": "norm",
    "g_norm": "norm",
    "growth": "norm",
    "nudging": "norm",
    "weight_growth": "norm",
    "norm_product": "norm",
    "gap": "norm",
    "sigma": "norm",
    "margin": "pp",
    "train_loss_delta": "loss",
    "fired": "epoch",
    "saved": "share",
    "verdict": "word",
    "flag": "word",
}


@dataclass(frozen=True)
class Figure:
    """One published number or word.

    Args:
        where: the setting, such as "primary".
        rule: the learning rule, "frozen" ("frozen-bp" where the stem's rule is known), or "" where it belongs to none.
        what: the quantity, a key of KINDS, with a part after a dot where there are several ("verdict.four").
        value: a number, a word, or (low, high).
        source: the documents that give it, such as "000 001".
        std: the ± that is given.
        batch: of the mean loss whose ‖g‖ it is.
        rough: given as an order of magnitude or with "about" before a power of ten.
        bound: ">" where only a lower bound is given, "<" an upper one.
        penalty: λ.
        epoch: where it is not the last one.
        site: of the residual stream, from the end if negative.
        seed: where it is of one seed.
        unlike: in what it differs from the column it stands in; such a figure is shown and not compared.
    """

    where: str
    rule: str
    what: str
    value: float | str | tuple[float, float]
    source: str
    std: float | None = None
    batch: int = PUBLISHED_BATCH
    rough: bool = False
    bound: str = ""
    penalty: float = 0.0
    epoch: int | None = None
    site: int | None = None
    seed: int | None = None
    unlike: str = ""

    @property
    def kind(self) -> str:
        """How it is written and compared."""
        return KINDS[self.what.partition(".")[0]]

    @property
    def number(self) -> float:
        """The value, ‖g‖ in the convention of 128 samples."""
        assert isinstance(self.value, (int, float))
        return self.value * self.batch / PUBLISHED_BATCH


def figures(where: str, rule: str | None = None, **fields: object) -> tuple[Figure, ...]:
    """All that is published of a setting; `fields` choose further, such as what="acc" or penalty=1e-2.

    >>> [(f.value, f.std, f.source) for f in figures("primary", "dfa", what="acc")]
    [(0.306, 0.006, '002'), (0.308, 0.014, '000 001'), (0.306, None, '004'), (0.308, None, '003')]
    """
    fields = {"where": where, **fields} if rule is None else {"where": where, "rule": rule, **fields}
    return tuple(f for f in FIGURES if all(getattr(f, name) == value for name, value in fields.items()))


_TRUST, _BACK = "passes", "walked back"  # the documents say "trustworthy" for the first
_BIG = LARGE_BATCH
_MIXED = "100 epochs without, 30 with"
_LONGER = "control of 100 epochs"  # every margin of 30 epochs is the accuracy less 0.349
_LONG = "probably of 100 epochs"
_SHARED = "one control for all rules"  # whose stem BP did not train: 0.349 is called DFA's own in 000
_BRIDGES = (("state-bridge", "001"), ("credit-bridge", "001"), ("ep", "001"))

FIGURES: tuple[Figure, ...] = (
    # -- primary audit: ResMLP d=256 L=4, CIFAR-10, 100 epochs, 3 seeds --------------------------------------------
    Figure("primary", "bp", "acc", 0.615, "002", 0.003),
    Figure("primary", "bp", "acc", 0.609, "001", 0.004),
    Figure("primary", "bp", "gamma", 1.0, "001 002"),
    Figure("primary", "bp", "h_norm", 200.0, "000 002"),
    Figure("primary", "bp", "h_norm", 2.1e2, "003", seed=42),
    Figure("primary", "bp", "g_norm", 4e-4, "001 002 004"),
    Figure("primary", "bp", "g_norm", 3.7e-4, "003", seed=42),
    Figure("primary", "bp", "g_norm", 5e-5, "000", batch=_BIG),
    Figure("primary", "bp", "growth", 1.3, "001"),
    Figure("primary", "bp", "stability", 0.099, "003", seed=42),
    Figure("primary", "bp", "margin", 26.6, "002", unlike=_SHARED),
    Figure("primary", "bp", "verdict.four", _TRUST, "000 001 002 003"),
    Figure("primary", "bp", "verdict.three", _TRUST, "004"),
    Figure("primary", "ep", "acc", 0.316, "002", 0.030),
    Figure("primary", "ep", "acc", 0.316, "000 001", 0.038),
    Figure("primary", "ep", "gamma", 0.008, "001 002"),
    Figure("primary", "ep", "h_norm", 5e3, "000 002"),
    Figure("primary", "ep", "h_norm", 3.3e3, "003", seed=42),
    Figure("primary", "ep", "g_norm", 1.3e-4, "002"),
    Figure("primary", "ep", "g_norm", 1e-4, "000", rough=True),
    Figure("primary", "ep", "g_norm", 2e-4, "001"),
    Figure("primary", "ep", "g_norm", 1.6e-4, "003", seed=42),
    Figure("primary", "ep", "growth", 11.6, "001 002"),
    Figure("primary", "ep", "stability", 0.02, "002"),
    Figure("primary", "ep", "stability", -0.036, "003", seed=42),
    Figure("primary", "ep", "margin", -3.3, "002", unlike=_SHARED),
    Figure("primary", "ep", "verdict.four", _TRUST, "000 001 002 003"),
    Figure("primary", "dfa", "acc", 0.306, "002", 0.006),
    Figure("primary", "dfa", "acc", 0.308, "000 001", 0.014),
    Figure("primary", "dfa", "acc", 0.306, "004"),
    Figure("primary", "dfa", "acc", 0.308, "003"),
    Figure("primary", "dfa", "gamma", 0.10, "000 001 002 004"),
    Figure("primary", "dfa", "gamma", 0.106, "001"),
    Figure("primary", "dfa", "gamma", (0.07, 0.10), "002"),
    Figure("primary", "dfa", "h_norm", 4e8, "000 001 002 004"),
    Figure("primary", "dfa", "h_norm", 4.4e8, "001 003", seed=42),
    Figure("primary", "dfa", "h_norm", 5e8, "004"),
    Figure("primary", "dfa", "h_norm", 1e8, "002 004", rough=True),
    Figure("primary", "dfa", "g_norm", 4e-9, "004"),
    Figure("primary", "dfa", "g_norm", 4.2e-9, "003", seed=42),
    Figure("primary", "dfa", "g_norm", 5e-10, "000 001 002 004", batch=_BIG),
    Figure("primary", "dfa", "g_norm", 1e-9, "001 002 004", rough=True),
    Figure("primary", "dfa", "growth", 237.0, "001 002"),
    Figure("primary", "dfa", "growth", 90.0, "004", bound=">"),
    Figure("primary", "dfa", "stability", 0.16, "002"),
    Figure("primary", "dfa", "stability", 0.047, "000 003", seed=42),
    Figure("primary", "dfa", "margin", -4.3, "002"),
    Figure("primary", "dfa", "margin", -4.0, "000 001 003"),
    Figure("primary", "dfa", "verdict.four", _BACK, "000 001 002 003"),
    Figure("primary", "dfa", "verdict.three", _BACK, "004"),
    Figure("primary", "state-bridge", "acc", 0.205, "002", 0.032),
    Figure("primary", "state-bridge", "acc", 0.205, "000 001", 0.039),
    Figure("primary", "state-bridge", "gamma", 0.005, "001 002"),
    Figure("primary", "state-bridge", "h_norm", 1e8, "002", rough=True),
    Figure("primary", "state-bridge", "g_norm", 1e-9, "001 002", rough=True),
    Figure("primary", "state-bridge", "g_norm", 5e-10, "002", batch=_BIG),
    Figure("primary", "state-bridge", "growth", 12000.0, "002"),
    Figure("primary", "state-bridge", "growth", 2.4, "001"),
    Figure("primary", "state-bridge", "stability", 0.53, "002"),
    Figure("primary", "state-bridge", "stability", 0.992, "000", seed=42),
    Figure("primary", "state-bridge", "margin", -14.4, "002"),
    Figure("primary", "state-bridge", "verdict.four", _BACK, "000 001 002"),
    Figure("primary", "credit-bridge", "acc", 0.289, "002", 0.026),
    Figure("primary", "credit-bridge", "acc", 0.289, "000 001", 0.034),
    Figure("primary", "credit-bridge", "gamma", 0.07, "001 002"),
    Figure("primary", "credit-bridge", "h_norm", 1e8, "002", rough=True),
    Figure("primary", "credit-bridge", "g_norm", 1e-9, "001 002", rough=True),
    Figure("primary", "credit-bridge", "g_norm", 5e-10, "002", batch=_BIG),
    Figure("primary", "credit-bridge", "growth", 96.0, "001 002"),
    Figure("primary", "credit-bridge", "stability", 0.37, "002"),
    Figure("primary", "credit-bridge", "margin", -6.0, "002"),
    Figure("primary", "credit-bridge", "verdict.four", _BACK, "000 001 002"),
    Figure("primary", "fa", "gamma", 0.23, "004"),
    Figure("primary", "fa", "h_norm", 1e5, "004", rough=True),
    Figure("primary", "fa", "g_norm", 9e-7, "004"),
    Figure("primary", "fa", "g_norm", 1e-7, "004", batch=_BIG, rough=True),
    Figure("primary", "fa", "growth", 50.0, "004", bound=">", unlike="inferred from D1"),
    Figure("primary", "frozen", "acc", 0.349, "000 001 002 004", 0.002),
    Figure("primary", "frozen", "acc", 0.349, "003"),
    Figure("aggregation", "dfa", "gamma.orders", (-0.028, 0.074), "001", seed=42),
    # -- primary audit per site -------------------------------------------------------------------------------------
    Figure("per-layer", "dfa", "cosine", 0.42, "000", site=0),
    Figure("per-layer", "dfa", "cosine", 0.42, "002", site=0, seed=42),
    Figure("per-layer", "dfa", "cosine", 0.43, "001", site=0),
    Figure("per-layer", "dfa", "cosine", 0.39, "004", site=0),
    *(Figure("per-layer", "dfa", "cosine", 0.0, "000 001", site=site) for site in (1, 2, 3, 4)),
    *(Figure("per-layer", "dfa", "cosine", (-0.03, 0.0), "002", site=site, seed=42) for site in (1, 2, 3, 4)),
    Figure("per-layer", "dfa", "cosine", 0.0, "004", site=3),  # "the deepest block", as of FA below
    Figure("per-layer", "dfa", "g_norm", 4e-7, "004", site=0),
    *(Figure("per-layer", "dfa", "g_norm", 4e-9, "004", site=site) for site in (1, 2, 3, 4)),
    Figure("per-layer", "fa", "cosine", 0.01, "004", site=0),
    Figure("per-layer", "fa", "cosine", 0.95, "004", site=3),  # the last block of Γ; at site 4 FA's credit is exact
    Figure("per-layer", "fa", "g_norm", 2e-5, "004", site=0),
    Figure("per-layer", "fa", "g_norm", 9e-7, "004", site=4),
    *(Figure("per-layer", "bp", "g_norm", 4e-4, "004", rough=True, site=site) for site in (0, 1, 2, 3, 4)),
    # -- d=512 L=2 --------------------------------------------------------------------------------------------------
    Figure("wide-shallow", "bp", "acc", 0.607, "004"),
    Figure("wide-shallow", "bp", "gamma", 1.0, "004"),
    Figure("wide-shallow", "bp", "margin", 25.7, "004", unlike=_SHARED),
    Figure("wide-shallow", "bp", "verdict.three", _TRUST, "004"),
    Figure("wide-shallow", "fa", "acc", 0.345, "004"),
    Figure("wide-shallow", "fa", "gamma", 0.48, "004"),
    Figure("wide-shallow", "fa", "margin", -0.4, "004"),
    Figure("wide-shallow", "fa", "verdict.three", _BACK, "004"),
    Figure("wide-shallow", "dfa", "acc", 0.297, "004"),
    Figure("wide-shallow", "dfa", "gamma", 0.19, "004"),
    Figure("wide-shallow", "dfa", "margin", -5.2, "004"),
    Figure("wide-shallow", "fa", "flag.growth", "ok", "004"),
    Figure("wide-shallow", "fa", "flag.reference", "ok", "004"),
    Figure("wide-shallow", "dfa", "verdict.three", _BACK, "004"),
    Figure("wide-shallow", "dfa", "growth", 90.0, "004", bound=">"),
    Figure("wide-shallow", "frozen", "acc", 0.349, "004", 0.002),
    # -- other networks ---------------------------------------------------------------------------------------------
    Figure("resmlp", "fa", "flag.growth", "flags", "004"),
    Figure("resmlp", "fa", "flag.reference", "ok", "004"),
    Figure("resmlp", "dfa", "flag.growth", "flags", "000 001 004"),
    Figure("resmlp", "dfa", "flag.reference", "flags", "000 001 004"),
    Figure("resmlp", "bp", "flag.growth", "ok", "000 001 004"),
    Figure("resmlp", "bp", "flag.reference", "ok", "000 001 004"),
    Figure("wide", "dfa", "growth", 90.0, "004", bound=">"),
    Figure("wide", "dfa", "flag.growth", "flags", "000"),
    Figure("wide", "dfa", "flag.reference", "flags", "000"),
    Figure("wide", "bp", "flag.growth", "ok", "000"),
    Figure("wide", "bp", "flag.reference", "ok", "000"),
    Figure("no-norm", "fa", "flag.growth", "flags", "004"),
    Figure("no-norm", "fa", "growth", (0.0, 10.0), "004"),  # its text says under 10, its Table 2 that D1 flags
    Figure("no-norm", "bp", "growth", (0.0, 10.0), "004"),
    *(Figure("student", rule, "growth", (0.0, 10.0), "004") for rule in ("bp", "fa")),
    *(Figure(net, "dfa", "growth", 90.0, "004", bound=">") for net in ("no-norm", "vit-mini", "student")),
    Figure("no-norm", "fa", "flag.reference", "ok", "004"),
    Figure("no-norm", "dfa", "flag.growth", "flags", "004"),
    Figure("no-norm", "dfa", "flag.reference", "ok", "004"),
    *(Figure("no-norm", rule, "h_norm", 1e7, "004", rough=True) for rule in ("fa", "dfa")),
    *(Figure("no-norm", rule, "g_norm", 1e-4, "004", rough=True, bound=">") for rule in ("fa", "dfa")),
    *(Figure("vit-mini", rule, "flag.growth", "flags", "004") for rule in ("fa", "dfa")),
    *(Figure("vit-mini", rule, "flag.reference", "flags", "004") for rule in ("fa", "dfa")),
    *(Figure("vit-mini", rule, "h_norm", 1e7, "004", rough=True) for rule in ("fa", "dfa")),
    *(Figure("vit-mini", rule, "g_norm", 1e-9, "004", rough=True) for rule in ("fa", "dfa")),
    Figure("vit-mini", "fa", "acc", 0.163, "004"),
    Figure("vit-mini", "dfa", "acc", 0.256, "004"),
    Figure("vit-mini", "dfa", "acc", 0.24, "000"),
    Figure("vit-mini", "dfa", "cosine.all", 0.0, "000"),
    *(Figure("vit-mini", rule, "margin", -30.0, "004", bound="<", unlike=_SHARED) for rule in ("fa", "dfa")),
    Figure("vit-mini", "bp", "flag.growth", "ok", "000"),
    Figure("vit-mini", "bp", "flag.reference", "ok", "000"),
    Figure("vit-mini", "frozen-bp", "acc", 0.570, "004", 0.003),
    Figure("vit-mini", "frozen-dfa", "acc", 0.257, "000"),
    *(Figure("student", rule, "flag.growth", "flags", "004") for rule in ("fa", "dfa")),
    *(Figure("student", rule, "flag.reference", "ok", "004") for rule in ("fa", "dfa")),
    *(Figure("student", rule, "h_norm", 1e3, "004", rough=True) for rule in ("fa", "dfa")),
    *(Figure("student", rule, "g_norm", 1e-4, "004", rough=True, bound=">") for rule in ("fa", "dfa")),
    Figure("student", "dfa", "g_norm", 1e-4, "002", rough=True),
    Figure("student", "bp", "acc", 0.796, "004"),
    Figure("student", "bp", "flag.growth", "ok", "000"),
    Figure("student", "bp", "flag.reference", "ok", "000"),
    Figure("student", "frozen", "acc", 0.908, "004", 0.009),
    Figure("small-cnn", "bp", "flag.growth", "ok", "000"),
    Figure("small-cnn", "dfa", "flag.growth", "flags", "000 001"),
    *(
        Figure("small-cnn", rule, "flag.reference", "ok", source)
        for rule, source in (("bp", "000 001"), ("dfa", "000 001 002"), *_BRIDGES)
    ),
    Figure("small-cnn", "dfa", "g_norm", 1e-4, "002", rough=True),
    # -- CIFAR-100 --------------------------------------------------------------------------------------------------
    Figure("cifar100", "bp", "acc", 0.321, "004", 0.002),
    Figure("cifar100", "bp", "growth", 1.0, "004"),
    Figure("cifar100", "bp", "g_norm", 9.5e-4, "004"),
    Figure("cifar100", "bp", "margin", 14.3, "004", unlike=_SHARED),
    Figure("cifar100", "bp", "verdict.three", _TRUST, "004"),
    Figure("cifar100", "fa", "acc", 0.133, "004", 0.013),
    Figure("cifar100", "fa", "growth", 15.6, "004"),
    Figure("cifar100", "fa", "g_norm", 1.3e-6, "004"),
    Figure("cifar100", "fa", "margin", -4.5, "004"),
    Figure("cifar100", "fa", "verdict.three", _BACK, "004"),
    Figure("cifar100", "dfa", "acc", 0.088, "004", 0.001),
    Figure("cifar100", "dfa", "growth", 1004.0, "004"),
    Figure("cifar100", "dfa", "g_norm", 9.1e-9, "004"),
    Figure("cifar100", "dfa", "margin", -9.0, "004"),
    Figure("cifar100", "dfa", "verdict.three", _BACK, "004"),
    Figure("cifar100", "frozen", "acc", 0.178, "004", 0.001),
    Figure("linear-probe", "cifar100", "acc", 0.177, "004"),
    # -- when the checks fire, and the course of training -----------------------------------------------------------
    Figure("temporal", "dfa", "fired.a", (8, 11), "000 002"),
    Figure("temporal", "dfa", "fired.b", (3, 4), "000 002"),
    Figure("temporal", "dfa", "acc", 0.308, "002", epoch=4),
    Figure("temporal", "dfa", "saved", 0.96, "000"),
    Figure("temporal", "bp", "fired.a", "never", "000 001"),
    Figure("temporal", "bp", "fired.b", "never", "000 001"),
    Figure("temporal-vit-mini", "dfa", "fired.a", (1, 1), "000"),
    Figure("temporal-vit-mini", "dfa", "fired.b", (2, 3), "000 002"),
    Figure("temporal-vit-mini", "bp", "fired.a", "never", "000 001"),
    Figure("temporal-vit-mini", "bp", "fired.b", "never", "000 001"),
    Figure("temporal-student", "dfa", "fired.a", (14, 25), "000"),
    Figure("temporal-student", "dfa", "fired.b", "never", "000 001"),
    Figure("temporal-student", "bp", "fired.a", "never", "000 001"),
    Figure("temporal-student", "bp", "fired.b", "never", "000 001"),
    Figure("temporal-small-cnn", "dfa", "fired.a", "fires", "000 001", unlike="no epoch given"),
    *(
        Figure("temporal-small-cnn", rule, "fired.b", "never", source)
        for rule, source in (("bp", "000 001"), ("dfa", "000 001 002"), *_BRIDGES)
    ),
    Figure("mechanism", "dfa", "h_norm", 9.0, "000 001 002", epoch=0),
    Figure("mechanism", "dfa", "h_norm", 1e2, "004", epoch=0, rough=True),
    Figure("mechanism", "dfa", "h_norm", 1e6, "002", epoch=5, rough=True),
    Figure("mechanism", "dfa", "h_norm", 4e8, "000 001 002 004", epoch=100),
    Figure("mechanism", "dfa", "g_norm", 8e-3, "000", epoch=0),
    Figure("mechanism", "dfa", "g_norm", 9.8e-4, "002", epoch=0, batch=_BIG),
    Figure("mechanism", "dfa", "g_norm", 1e-3, "001 004", epoch=0, batch=_BIG, rough=True),
    Figure("mechanism", "dfa", "g_norm", 1.4e-6, "001 002", epoch=1, batch=_BIG),
    Figure("mechanism", "dfa", "g_norm", 3.1e-7, "002", epoch=2, batch=_BIG),
    Figure("mechanism", "dfa", "g_norm", 1.3e-7, "002", epoch=3, batch=_BIG),
    Figure("mechanism", "dfa", "g_norm", 6.7e-8, "002", epoch=4, batch=_BIG),
    Figure("mechanism", "dfa", "g_norm", (0.0, 1e-8), "004", epoch=20),
    Figure("mechanism", "dfa", "g_norm", 5e-10, "000 001 002 004", epoch=100, batch=_BIG),
    Figure("mechanism", "dfa", "weight_growth", 95.0, "000 001", epoch=100),
    Figure("mechanism", "dfa", "weight_growth", 200.0, "001 002", epoch=100),
    Figure("mechanism", "dfa", "norm_product", 5e4, "000 002", epoch=100),
    Figure("mechanism", "dfa", "norm_product", 5e4, "001", epoch=100, unlike="its growth"),
    Figure("mechanism", "bp", "weight_growth", 2.7, "000", epoch=100),
    Figure("mechanism", "bp", "h_norm", 200.0, "000 002", epoch=100),
    Figure("mechanism", "bp", "g_norm", 4e-4, "001 002 004", epoch=100),
    Figure("mechanism", "fa", "h_norm", 1e5, "004", epoch=100, rough=True),
    Figure("mechanism", "fa", "g_norm", 9e-7, "004", epoch=100),
    # -- sub-modes --------------------------------------------------------------------------------------------------
    Figure("sub-modes", "bp", "stability", 0.099, "003", seed=42),
    Figure("sub-modes", "ep", "stability", -0.036, "003", seed=42),
    Figure("sub-modes", "dfa", "stability", 0.047, "000 003", seed=42),
    Figure("sub-modes", "dfa", "flag.submode", "noise-dominated", "000", seed=42),
    Figure("sub-modes", "state-bridge", "stability", 0.992, "000", seed=42),
    Figure("sub-modes", "state-bridge", "flag.submode", "drift-dominated", "000", seed=42),
    # -- early epochs of DFA ----------------------------------------------------------------------------------------
    Figure("early-epochs", "dfa", "deep_cosine", -0.008, "001 002 004", 0.013, epoch=1),
    Figure("early-epochs", "dfa", "deep_cosine", -0.018, "002", 0.018, epoch=2),
    Figure("early-epochs", "dfa", "perturbation", -0.003, "001 002", 0.005, epoch=1),
    Figure("early-epochs", "dfa", "cosine.range", (-0.04, 0.02), "001 002", epoch=1),
    Figure("early-epochs", "dfa", "cosine.first", (0.39, 0.45), "002", epoch=1),
    *(
        Figure("early-epochs", "dfa", "g_norm", value, source, epoch=epoch, batch=_BIG)
        for epoch, value, source in ((1, 1.4e-6, "001 002"), (2, 3.1e-7, "002"), (3, 1.3e-7, "002"), (4, 6.7e-8, "002"))
    ),
    # ‖g_2‖ of the three seeds, in no order that is stated.
    *(Figure("early-epochs", "dfa", "g_norm.site2", g, "002", epoch=1, batch=_BIG) for g in (6.7e-7, 6.5e-7, 3.9e-7)),
    Figure("early-epochs", "dfa", "g_norm", 1e-7, "004", epoch=1, batch=_BIG, rough=True),
    # -- penalty: 30 epochs -----------------------------------------------------------------------------------------
    Figure("lambda-sweep", "dfa", "acc", 0.308, "001", seed=42, unlike="100 epochs"),
    Figure("lambda-sweep", "dfa", "h_norm", 4.4e8, "001", seed=42, unlike="100 epochs"),
    Figure("lambda-sweep", "dfa", "h_norm", 4e8, "004"),
    Figure("lambda-sweep", "dfa", "g_norm", 5e-10, "001", batch=_BIG, unlike="100 epochs"),
    Figure("lambda-sweep", "dfa", "g_norm", 5e-10, "004", batch=_BIG),
    Figure("lambda-sweep", "dfa", "deep_cosine", 0.0, "004"),
    Figure("lambda-sweep", "dfa", "acc", 0.301, "004"),  # 0.360 less the 5.9 pp that the penalty gains
    Figure("lambda-sweep", "dfa", "acc", 0.359, "001", penalty=1e-4, seed=42),
    Figure("lambda-sweep", "dfa", "h_norm", 2.4e4, "001", penalty=1e-4, seed=42),
    Figure("lambda-sweep", "dfa", "h_norm", 2.3e4, "004", penalty=1e-4),
    Figure("lambda-sweep", "dfa", "g_norm", 6.3e-7, "001", penalty=1e-4, batch=_BIG, seed=42),
    Figure("lambda-sweep", "dfa", "g_norm", 5e-6, "004", penalty=1e-4),
    Figure("lambda-sweep", "dfa", "deep_cosine", -0.022, "001", penalty=1e-4, seed=42),
    Figure("lambda-sweep", "dfa", "deep_cosine", -0.016, "004", 0.016, penalty=1e-4),
    Figure("lambda-sweep", "dfa", "perturbation", -0.004, "001", penalty=1e-4, seed=42),
    Figure("lambda-sweep", "dfa", "acc", 0.372, "000", penalty=1e-3, seed=42),
    Figure("lambda-sweep", "dfa", "margin", 2.3, "000", penalty=1e-3, seed=42, unlike=_LONGER),
    Figure("lambda-sweep", "dfa", "acc", 0.363, "001", 0.001, penalty=1e-2),
    Figure("lambda-sweep", "dfa", "acc", 0.363, "000", penalty=1e-2),
    Figure("lambda-sweep", "dfa", "acc", 0.360, "004", 0.002, penalty=1e-2),
    Figure("lambda-sweep", "dfa", "margin", 1.4, "000", 0.05, penalty=1e-2, unlike=_LONGER),
    Figure("lambda-sweep", "dfa", "margin", 1.4, "001", penalty=1e-2, unlike=_LONGER),
    Figure("lambda-sweep", "dfa", "margin", 1.1, "004", penalty=1e-2, unlike=_LONGER),
    Figure("lambda-sweep", "dfa", "h_norm", 4.0e4, "001", 0.1e4, penalty=1e-2, unlike=_LONG),
    Figure("lambda-sweep", "dfa", "h_norm", 4e4, "000 002", penalty=1e-2, unlike=_LONG),
    Figure("lambda-sweep", "dfa", "g_norm", 9.0e-7, "001", 0.9e-7, penalty=1e-2, batch=_BIG, unlike=_LONG),
    Figure("lambda-sweep", "dfa", "g_norm", 1e-6, "000 002", penalty=1e-2, batch=_BIG, rough=True, unlike=_LONG),
    Figure("lambda-sweep", "dfa", "deep_cosine", 0.155, "001 002", 0.025, penalty=1e-2),
    Figure("lambda-sweep", "dfa", "deep_cosine", 0.165, "001", penalty=1e-2, seed=42),
    Figure("lambda-sweep", "dfa", "deep_cosine", 0.152, "004", 0.013, penalty=1e-2),
    Figure("lambda-sweep", "dfa", "perturbation", 0.080, "001 002", 0.011, penalty=1e-2),
    Figure("lambda-sweep", "dfa", "perturbation", 0.091, "001", penalty=1e-2, seed=42),
    Figure("lambda-sweep", "dfa", "acc", 0.349, "001", penalty=1e-1, seed=42),
    Figure("lambda-sweep", "dfa", "h_norm", 1.2e4, "001", penalty=1e-1, seed=42),
    Figure("lambda-sweep", "dfa", "g_norm", 1.6e-6, "001", penalty=1e-1, batch=_BIG, seed=42),
    Figure("lambda-sweep", "dfa", "deep_cosine", 0.131, "001", penalty=1e-1, seed=42),
    Figure("lambda-sweep", "dfa", "perturbation", 0.067, "001", penalty=1e-1, seed=42),
    Figure("lambda-sweep", "fa", "acc", 0.372, "004", 0.007),
    Figure("lambda-sweep", "fa", "deep_cosine", 0.325, "004", 0.015),
    Figure("lambda-sweep", "fa", "h_norm", 9e4, "004"),
    Figure("lambda-sweep", "fa", "g_norm", 2e-6, "004"),
    Figure("lambda-sweep", "fa", "acc", 0.377, "004", 0.006, penalty=1e-4),
    Figure("lambda-sweep", "fa", "deep_cosine", 0.298, "004", 0.031, penalty=1e-4),
    Figure("lambda-sweep", "fa", "h_norm", 9e3, "004", penalty=1e-4),
    Figure("lambda-sweep", "fa", "g_norm", 1e-5, "004", penalty=1e-4),
    Figure("lambda-sweep", "fa", "acc", 0.369, "004", 0.003, penalty=1e-2),
    Figure("lambda-sweep", "fa", "deep_cosine", 0.423, "004", 0.006, penalty=1e-2),
    Figure("lambda-sweep", "fa", "h_norm", 1e4, "004", penalty=1e-2),
    Figure("lambda-sweep", "fa", "g_norm", 2e-5, "004", penalty=1e-2),
    Figure("lambda-sweep", "bp", "acc", 0.585, "004", 0.001),
    Figure("lambda-sweep", "bp", "deep_cosine", 1.0, "004"),
    Figure("lambda-sweep", "bp", "acc", 0.532, "004", 0.007, penalty=1e-2),
    Figure("lambda-sweep", "bp", "acc", 0.530, "001", penalty=1e-2),
    Figure("lambda-sweep", "bp", "deep_cosine", 1.0, "004", penalty=1e-2),
    Figure("lambda-sweep", "bp", "margin", 18.3, "004", penalty=1e-2, unlike=_LONGER),
    Figure("lambda-sweep", "bp", "margin", 18.1, "001", penalty=1e-2, unlike=_LONGER),
    # 001 takes its runs without a penalty from 100 epochs and those with one from 30; 004 has 30 throughout.
    Figure("capacity", "bp", "acc.without", 0.585, "004", 0.001),
    Figure("capacity", "bp", "acc.without", 0.609, "001", unlike="100 epochs"),
    Figure("capacity", "bp", "acc.with", 0.532, "004", 0.007),
    Figure("capacity", "bp", "acc.with", 0.530, "001"),
    Figure("capacity", "bp", "margin.effect", -5.3, "004"),
    Figure("capacity", "bp", "margin.effect", -8.0, "001", unlike=_MIXED),
    Figure("capacity", "bp", "margin.frozen", 18.3, "004", unlike=_LONGER),
    Figure("capacity", "bp", "margin.frozen", 18.1, "001", unlike=_LONGER),
    Figure("capacity", "dfa", "acc.without", 0.301, "004"),
    Figure("capacity", "dfa", "acc.without", 0.308, "001", unlike="100 epochs"),
    Figure("capacity", "dfa", "acc.with", 0.360, "004", 0.002),
    Figure("capacity", "dfa", "acc.with", 0.363, "001"),
    Figure("capacity", "dfa", "margin.effect", 5.9, "004"),
    Figure("capacity", "dfa", "margin.effect", 5.5, "001", unlike=_MIXED),
    Figure("capacity", "dfa", "margin.frozen", 1.1, "004", unlike=_LONGER),
    Figure("capacity", "dfa", "margin.frozen", 1.4, "001", unlike=_LONGER),
    Figure("capacity", "", "margin.gap", 17.0, "001"),
    Figure("fresh-feedback", "dfa", "deep_cosine", 0.166, "004", penalty=1e-2, seed=42),
    Figure("fresh-feedback", "dfa", "fresh.deep_cosine", -0.005, "004", 0.018, penalty=1e-2, seed=42),
    Figure("fresh-feedback", "dfa", "fresh.deep_cosine", 0.002, "001 002", 0.022, penalty=1e-2),
    Figure("fresh-feedback", "dfa", "sigma.deep_cosine", 9.3, "004", penalty=1e-2, seed=42),
    Figure("fresh-feedback", "dfa", "gamma", 0.106, "001"),
    Figure("fresh-feedback", "dfa", "fresh.gamma", 0.0, "001", 0.005),
    Figure("triangulation", "bp", "perturbation.positive", 0.997, "001 002"),
    Figure("triangulation", "bp", "deep_cosine.positive", 1.0, "001"),
    Figure("triangulation", "bp", "perturbation.negative", 0.006, "001 002"),
    Figure("triangulation", "dfa", "deep_cosine.early", -0.008, "001 002", 0.013),
    Figure("triangulation", "dfa", "perturbation.early", -0.003, "001 002", 0.005),
    Figure("triangulation", "dfa", "deep_cosine.converged", -0.022, "002"),
    Figure("triangulation", "dfa", "perturbation.converged", 0.002, "001 002"),
    Figure("triangulation", "dfa", "deep_cosine.penalised", 0.155, "001 002", 0.025),
    Figure("triangulation", "dfa", "perturbation.penalised", 0.080, "001 002", 0.011),
    Figure("matched-penalty", "state-bridge", "acc", 0.453, "004", 0.003),
    Figure("matched-penalty", "state-bridge", "deep_cosine", 0.322, "004", 0.008),
    Figure("matched-penalty", "state-bridge", "nudging", -1.93e-3, "004"),
    Figure("matched-penalty", "state-bridge", "train_loss_delta", -0.447, "004"),
    Figure("matched-penalty", "fa", "acc", 0.369, "004", 0.003),
    Figure("matched-penalty", "fa", "deep_cosine", 0.423, "004", 0.006),
    Figure("matched-penalty", "fa", "nudging", -2.09e-4, "004"),
    Figure("matched-penalty", "fa", "train_loss_delta", -0.128, "004"),
    Figure("matched-penalty", "credit-bridge", "acc", 0.360, "004", 0.004),
    Figure("matched-penalty", "credit-bridge", "deep_cosine", 0.679, "004", 0.010),
    Figure("matched-penalty", "credit-bridge", "nudging", -4.26e-4, "004"),
    Figure("matched-penalty", "credit-bridge", "train_loss_delta", -0.121, "004"),
    Figure("matched-penalty", "dfa", "acc", 0.360, "004", 0.002),
    Figure("matched-penalty", "dfa", "deep_cosine", 0.152, "004", 0.013),
    Figure("matched-penalty", "dfa", "nudging", -4.98e-5, "004"),
    Figure("matched-penalty", "dfa", "train_loss_delta", -0.095, "004"),
    Figure("two-modes", "dfa", "g_norm.early", 1e-6, "002", batch=_BIG, rough=True),
    Figure("two-modes", "dfa", "g_norm.converged", 1e-9, "002", rough=True),
    Figure("two-modes", "dfa", "g_norm.penalised", 1e-6, "002", batch=_BIG, rough=True),
    Figure("two-modes", "dfa", "flag.early", "Mode 2 without Mode 1", "002"),
    Figure("two-modes", "dfa", "flag.converged", "Mode 1 hides Mode 2", "002"),
    Figure("two-modes", "dfa", "flag.penalised", "partial alleviation of both", "002"),
    Figure("two-modes", "dfa", "flag.fresh", "specific to the trained feedback", "002"),
    # -- thresholds -------------------------------------------------------------------------------------------------
    Figure("sensitivity", "", "growth.healthy", 11.0, "000 001", seed=123),  # EP
    Figure("sensitivity", "", "growth.failing", 694.0, "000 001", seed=123),  # Credit Bridge
    Figure("sensitivity", "", "gap.growth", 63.0, "000 001"),
    Figure("sensitivity", "", "g_norm.healthy", 1.0e-4, "001"),
    Figure("sensitivity", "", "g_norm.failing", 4.2e-9, "001"),
    Figure("sensitivity", "", "gap.g_norm", 24338.0, "000 001"),
    Figure("sensitivity", "", "flag.growth", "holds", "000 001"),
    Figure("sensitivity", "", "flag.g_norm", "holds", "000 001"),
    Figure("sensitivity", "", "flag.margin", "changes", "000"),
    # -- which reporting strategy catches what ----------------------------------------------------------------------
    Figure("ablation", "dfa", "flag.caught", "S2", "004"),
    Figure("ablation", "bp", "flag.caught", "passes", "004"),
    Figure("ablation-wide-shallow", "fa", "flag.caught", "S3", "004"),
    Figure("ablation-vit-mini", "dfa", "flag.caught", "S2", "004"),
    Figure("ablation-vit-mini", "fa", "flag.caught", "S2", "004"),
    *(
        Figure("ablation-four", rule, f"flag.{strategy}", "WB" if strategy in caught.split() else "–", "001")
        for rule, caught in (
            ("bp", ""),
            ("ep", ""),
            ("dfa", "a b d full"),
            ("state-bridge", "a b c d full"),
            ("credit-bridge", "a b c d full"),
        )
        for strategy in ("S0", "S1", "a", "b", "c", "d", "full")
    ),
)
