"""Settings judged: the primary audit, other widths, networks and data, the credit's site, the pixels alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from walkback.audit.plans import SEEDS
from walkback.audit.records import Record, Records
from walkback.audit.settings import LABELS, RULES, VALUES, Setting, known_settings, select
from walkback.replication.published import Figure, figures
from walkback.replication.tables.build import (
    AGREES,
    OURS,
    THREE,
    Against,
    AuditRow,
    Draft,
    against,
    among,
    audit,
    count,
    evidence_table,
)
from walkback.report.table import NONE, spread, stat

WIDE_SHALLOW = (("depth", 2), ("width", 512))
WIDE = (("width", 512),)
NO_NORM = (("terminal_norm", False),)
# Label, setting, terminal LayerNorm, where its figures are published.
NETWORKS = (
    ("ResMLP d=256 L=4", Setting("bp"), "yes", "resmlp"),
    ("ResMLP d=512 L=4", Setting("bp", net_options=WIDE), "yes", "wide"),
    ("ResMLP d=512 L=2", Setting("bp", net_options=WIDE_SHALLOW), "yes", "wide-shallow"),
    ("ResMLP d=256 L=4", Setting("bp", net_options=NO_NORM, any_epochs=True), "no", "no-norm"),
    ("ViT-Mini", Setting("bp", net="vit-mini", epochs=30, any_epochs=True), "yes", "vit-mini"),
    ("StudentNet", Setting("bp", net="student", data="teacher-linear", any_epochs=True), "no", "student"),
    ("StudentNet", Setting("bp", net="student", data="teacher", any_epochs=True), "no", "teacher"),  # ours
    ("SmallCNN", Setting("bp", net="small-cnn", epochs=30, any_epochs=True), "no", "small-cnn"),
)


def networks(records: Records) -> list[tuple[str, Setting, str, str]]:
    """Return NETWORKS; of the two tasks of StudentNet those with runs, the papers' one where there are none."""
    tasks = {s.data for s in known_settings(records) if s.net == "student"} or {"teacher-linear"}
    return [row for row in NETWORKS if row[1].net != "student" or row[1].data in tasks]


def _frozen(where: str, rule: str) -> tuple[Figure, ...]:
    """Return what is published of a frozen control; one number for all rules is not held against a BP stem's."""
    return (() if rule == "bp" else figures(where, "frozen")) + figures(where, f"frozen-{rule}")


def _entries(where: str, base: Setting, trained: Sequence[str] = THREE) -> list[AuditRow]:
    """Return the entries of rules on one network, then of their frozen controls."""
    entries = [AuditRow((RULES[rule],), replace(base, rule=rule), figures(where, rule)) for rule in trained]
    return entries + [_control((), where, replace(base, rule=rule)) for rule in trained]


def _control(labels: tuple[str, ...], where: str, setting: Setting) -> AuditRow:
    label = f"frozen, {RULES[setting.rule]} stem"
    return AuditRow((*labels, label), replace(setting, scope="frozen"), _frozen(where, setting.rule))


@evidence_table(
    10,
    "Primary audit: ResMLP d=256 L=4 on CIFAR-10, 100 epochs, mean ± std over seeds",
    "rule | figures | n | acc | Γ | ‖h_L‖ | ‖g_L‖ | ρ | stability | D3 pp | D3 pp, BP stem | three-check | "
    "four-diagnostic | agrees?",
    "published: 3 seeds; augmentation is not stated there, so ours is shown with flips and crops and without",
    "the documents call EP trustworthy although it is below the frozen blocks: its measurement is",
    "the published frozen control is one number: DFA's in 000, that of DFA, State Bridge and Credit Bridge in "
    "001; it is compared with our controls whose stem a rule has trained, and not with that of BP",
)
def primary(t: Draft) -> None:
    """The primary audit: six rules and the frozen controls, both verdicts, with and without augmentation."""
    base = Setting("bp")
    others = {s.rule for s in known_settings(t.records) if replace(s, rule="bp", augment=False) == base} - set(RULES)
    entries = _entries("primary", base, tuple(RULES))
    entries[len(RULES) : len(RULES)] = [AuditRow((LABELS.get(rule, rule),), Setting(rule)) for rule in sorted(others)]
    t.notes[1:1] = _without_gamma(t.records)
    audit(t, entries, augment=(True, False))


def _without_gamma(records: Records) -> Iterator[str]:
    """Yield why, of every rule of the primary audit whose runs have no Γ."""
    for rule, label in RULES.items():
        runs = [run for flag in (True, False) for run in select(records, Setting(rule, augment=flag))]
        lacking_it = [run for run in runs if VALUES["gamma"](run) is None]
        why = min((run.report.reasons.get("gamma", "no reason is recorded") for run in lacking_it), key=len, default="")
        if why:
            some = f"{len(lacking_it)} of {len(runs)} runs"
            yield f"{label} has no Γ on {some} ({why}); per-layer has the cosines there are"


def _site(run: Record, name: str, site: int) -> float | None:
    values = run.report.per_layer.get(name) or []
    return values[site] if site < len(values) else None


def _growth(run: Record, site: int) -> float | None:
    before, after = (_site(run, "h_norm", s) for s in (site - 1, site)) if site else (None, None)
    return after / before if before and after is not None else None


@evidence_table(
    20,
    "Primary audit, site by site: ResMLP d=256 L=4 on CIFAR-10, 100 epochs",
    "rule | figures | n | site | ‖h‖ | growth | ‖g‖ | published ‖g‖ | cos | published cos | clamped | under ε | "
    "ρ_pert | agrees?",
    "site 0 is what the stem writes, site l what block l writes; FA's credit at the last site is exact",
    "clamped: what a cosine with ε = 1e-8 says; under ε: the share of samples whose ‖g‖ is below it",
    "(k/n): only k of the n seeds have a value there; the others have none, for instance no credit",
    AGREES,
)
def per_layer(t: Draft) -> None:
    """Norms and cosines of the primary audit, site by site."""
    for flag, name, setting in t.primary():
        runs = t.runs(setting)
        for site in range(max((len(r.measurements.h_norm) for r in runs), default=5)):
            printed = figures("per-layer", setting.rule, site=site)
            at = {
                what: stat(_site(r, what, site) for r in runs)
                for what in ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps", "perturbation")
            }
            t.row(
                *(name, OURS[flag], count(len(runs)), count(site), spread(at["h_norm"], "norm")),
                spread(stat(_growth(r, site) for r in runs), "norm"),
                against("‖g‖", at["g_norm"], "norm", among(printed, "g_norm")),
                against("cos", at["cosine"], "cos", among(printed, "cosine")),
                spread(at["cosine_clamped"], "cos"),
                spread(at["below_eps"], "acc"),
                spread(at["perturbation"], "cos"),
            )


@evidence_table(
    160,
    "ResMLP d=512 L=2 on CIFAR-10, 100 epochs: the latest paper's representative setting",
    "rule | figures | n | acc | Γ | ‖h_L‖ | ‖g_L‖ | ρ | D3 pp | D3 pp, BP stem | three-check | four-diagnostic | "
    "agrees?",
)
def wide_shallow(t: Draft) -> None:
    """004's representative setting: d=512, L=2."""
    audit(t, _entries("wide-shallow", Setting("bp", net_options=WIDE_SHALLOW)))


@evidence_table(
    170,
    "Across networks: scale and reference with and without a terminal LayerNorm",
    "network | terminal LN | rule | figures | n | epochs | acc | ‖h_L‖ | ‖g_L‖ | ρ | D1 | D2 | D3 pp | "
    "D3 pp, BP stem | three-check | agrees?",
    "of each network the longest runs there are; their epochs are in the table, and figures of longer ones are not "
    "compared",
    "StudentNet's published task (teacher-linear) is solved by a linear map: where BP gains less than 2 pp "
    "over its own frozen control, D3 is not tested; teacher is a task that needs depth",
    "004 says of FA without a terminal norm both that growth stays under 10 and that D1 flags",
)
def cross_arch(t: Draft) -> None:
    """Which checks flag on which network: growth everywhere, the reference only under a terminal LayerNorm?"""
    entries = []
    for label, base, norm, where in networks(t.records):
        name = label if base.net != "student" else f"{label} on {base.data}"
        for rule in RULES if base.net == "small-cnn" else THREE:
            entries.append(AuditRow((name, norm, RULES[rule]), replace(base, rule=rule), figures(where, rule)))
        controls = [_control((name, norm), where, replace(base, rule=rule)) for rule in ("bp", "dfa")]
        entries += [entry for entry in controls if entry.figures or figures(where, "frozen")]
    audit(t, entries)


@evidence_table(
    180,
    "CIFAR-100: ResMLP d=256 L=4, 100 epochs",
    "rule | figures | n | acc | Γ | ‖h_L‖ | ‖g_L‖ | ρ | D3 pp | D3 pp, BP stem | three-check | four-diagnostic | "
    "agrees?",
)
def cifar100(t: Draft) -> None:
    """The primary audit on CIFAR-100."""
    if not any(s.data == "cifar100" for s in known_settings(t.records)):
        t.notes.append("the commands need the files of CIFAR-100 under --root")
    audit(t, _entries("cifar100", Setting("bp", data="cifar100")))


@evidence_table(
    190,
    "Credit site: a block gets the credit of the site it writes or of the one it reads, {epochs} epochs",
    "rule | credit site | figures | n | acc | Γ | deep cos | ‖h_L‖ | ‖g_L‖ | ρ | D3 pp | D3 pp, BP stem | "
    "three-check | agrees?",
    "the documents don't compare the two; 004's indices read as reader",
)
def credit_site(t: Draft) -> None:
    """The module that writes a site gets its credit, or the one that reads it."""
    base = Setting("dfa", credit_site="reader")
    reader = [s for s in known_settings(t.records) if replace(s, rule="dfa", epochs=100, augment=False) == base]
    epochs = max((s.epochs for s in reader), default=100)
    t.title = t.title.format(epochs=epochs)
    cells = [(rule, site) for rule in ("fa", "dfa") for site in ("writer", "reader")]
    audit(t, [AuditRow((RULES[r], site), Setting(r, credit_site=site, epochs=epochs)) for r, site in cells])


@evidence_table(
    200,
    "Credit of unit length, of the site a block reads: ResMLP d=256 L=4 on CIFAR-10, 100 epochs unless said",
    "rule | figures | n | acc | Γ | deep cos | ‖h_L‖ | ‖g_L‖ | ρ | stability | D3 pp | D3 pp, BP stem | three-check | "
    "four-diagnostic | agrees?",
    "published are the figures of the primary audit, whose documents state neither the length of a sample's "
    "credit nor, but for 004's indices, its site",
    "frozen blocks get no credit: there the stem's has unit length",
)
def unit_credit(t: Draft) -> None:
    """Two things the documents leave open, chosen otherwise: do FA and DFA come out as published?"""
    unit = {rule: Setting(rule, credit_site="reader", unit=True) for rule in ("fa", "dfa")}
    frozen, penalised = figures("primary", "frozen"), replace(unit["dfa"], penalty=1e-2, epochs=30)
    entries = [AuditRow((RULES[rule],), setting, figures("primary", rule)) for rule, setting in unit.items()]
    entries += [AuditRow((f"frozen, {RULES[r]} stem",), Setting(r, scope="frozen", unit=True), frozen) for r in unit]
    entries.append(AuditRow(("DFA, λ 0.01, 30 epochs",), penalised, figures("lambda-sweep", "dfa", penalty=1e-2)))
    audit(t, entries)


@evidence_table(
    80,
    "Sub-mode of a failed reference by rule and seed: primary audit",
    "rule | figures | seed | (a) | (b) | stability | published stability | sub-mode | published sub-mode | agrees?",
    "a sub-mode is named only where (a) or (b) flags: drift-dominated above a stability of 0.30, else noise-dominated",
    "published ranges: healthy 0.05 to 0.18, drift 0.43 to 0.99 (003)",
    AGREES,
)
def sub_modes(t: Draft) -> None:
    """Which kind of degenerate reference, by rule and seed."""
    for flag, name, setting in t.primary():
        j = t.judged(setting, controls=False)
        verdicts = {r.spec.seed: v for r, v in zip(j.runs, j.verdicts["four-diagnostic"])}
        for seed in sorted({*SEEDS, *verdicts}):
            verdict, printed = verdicts.get(seed), figures("sub-modes", setting.rule, seed=seed)
            flags = [verdict and verdict[name].flagged for name in ("growth", "reference")]
            submode = None
            if verdict and verdict.measurement_valid is not None:
                submode = "none: reference valid" if verdict.measurement_valid else verdict.submode or "not told"
            t.row(
                *(name, OURS[flag], count(seed)),
                *({True: "flags", False: "ok", None: NONE}[flag] for flag in flags),
                against(
                    "stability", stat([verdict and verdict["stability"].value]), "cos", among(printed, "stability")
                ),
                Against("sub-mode", submode or NONE, submode, among(printed, "flag.submode")),
            )
