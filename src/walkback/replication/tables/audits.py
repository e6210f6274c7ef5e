"""Settings judged: the primary audit, other widths, networks and data, the credit's site, the pixels alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, SEEDS, VALUES, Setting, commands, judged, known_settings, lacking, select
from walkback.errors import FormatError
from walkback.replication.agree import agrees_any, answer, published
from walkback.replication.published import Figure, figures
from walkback.replication.tables.build import OURS, Entry, audit, compare, rules, variants
from walkback.replication.tables.linear_probe import read_linear_probe
from walkback.report.table import NONE, Cell, Stat, Table, spread, stat, table

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
    """NETWORKS; of the two tasks of StudentNet those with runs, the papers' one where there are none."""
    tasks = {s.data for s in known_settings(records) if s.net == "student"} or {"teacher-linear"}
    return [row for row in NETWORKS if row[1].net != "student" or row[1].data in tasks]


def _frozen(where: str, rule: str) -> tuple[Figure, ...]:
    """What is published of a frozen control; one number for all rules is not held against that of a BP-trained stem."""
    return (() if rule == "bp" else figures(where, "frozen")) + figures(where, f"frozen-{rule}")


def primary(records: Records) -> Table:
    """The primary audit: six rules and the frozen controls, both verdicts, with and without augmentation."""
    base = Setting("bp")
    others = {s.rule for s in known_settings(records) if replace(s, rule="bp", augment=False) == base} - set(RULES)
    entries = [Entry((RULES[rule],), Setting(rule), figures("primary", rule)) for rule in RULES]
    entries += [Entry((rule,), Setting(rule)) for rule in sorted(others)]
    entries += [
        Entry(
            (f"frozen, {RULES[rule]} stem",),
            Setting(rule, scope="frozen"),
            _frozen("primary", rule),
        )
        for rule in RULES
    ]
    return audit(
        "primary",
        "Primary audit: ResMLP d=256 L=4 on CIFAR-10, 100 epochs, mean ± std over seeds",
        records,
        ["rule"],
        entries,
        ["acc", "gamma", "h_norm", "g_norm", "growth", "stability", "depth", "depth_bp", "three", "four"],
        [
            "published: 3 seeds; augmentation is not stated there, so ours is shown with flips and crops and without",
            *_without_gamma(records),
            "the documents call EP trustworthy although it is below the frozen blocks: its measurement is",
            "the published frozen control is one number: DFA's in 000, that of DFA, State Bridge and Credit Bridge in "
            "001; it is compared with our controls whose stem a rule has trained, and not with that of BP",
        ],
        augment=(True, False),
    )


def _without_gamma(records: Records) -> Iterator[str]:
    """Of every rule of the primary audit whose runs have no Γ, why."""
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


def per_layer(records: Records) -> Table:
    """Norms and cosines of the primary audit, site by site."""
    rows, missing, kinds = [], [], set()
    for flag in variants(records, [Setting(rule) for rule in RULES]):
        for rule, name in RULES.items():
            setting = Setting(rule, augment=flag)
            runs = select(records, setting)
            missing += lacking(records, setting, controls=False)
            for site in range(max((len(r.measurements.h_norm) for r in runs), default=5)):
                said = figures("per-layer", rule, site=site)
                kinds |= {f.kind for f in said}
                ours = {k: stat(_site(r, k, site) for r in runs) for k in ("h_norm", "g_norm", "cosine")}
                found = {
                    head: agrees_any(_mean(ours[what]), [f for f in said if f.what == what])
                    for head, what in (("‖g‖", "g_norm"), ("cos", "cosine"))
                }
                rows.append(
                    [
                        name,
                        OURS[flag],
                        Cell(str(len(runs)), len(runs)),
                        Cell(str(site), site),
                        spread(ours["h_norm"], "norm"),
                        spread(stat(_growth(r, site) for r in runs), "norm"),
                        spread(ours["g_norm"], "norm"),
                        published([f for f in said if f.what == "g_norm"]),
                        spread(ours["cosine"], "cos"),
                        published([f for f in said if f.what == "cosine"]),
                        spread(stat(_site(r, "cosine_clamped", site) for r in runs), "cos"),
                        spread(stat(_site(r, "below_eps", site) for r in runs), "acc"),
                        spread(stat(_site(r, "perturbation", site) for r in runs), "cos"),
                        answer(found),
                    ]
                )
    return table(
        "per-layer",
        "Primary audit, site by site: ResMLP d=256 L=4 on CIFAR-10, 100 epochs",
        (
            "rule | figures | n | site | ‖h‖ | growth | ‖g‖ | published ‖g‖ | cos | published cos | clamped | "
            "under ε | ρ_pert | agrees?"
        ),
        rows,
        [
            "site 0 is what the stem writes, site l what block l writes; FA's credit at the last site is exact",
            "clamped: what a cosine with ε = 1e-8 says; under ε: the share of samples whose ‖g‖ is below it",
            "(k/n): only k of the n seeds have a value there; the others have none, for instance no credit",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def _mean(value: Stat | None) -> float | None:
    return None if value is None else value.mean


def wide_shallow(records: Records) -> Table:
    """004's representative setting: d=512, L=2."""
    entries = [
        Entry((RULES[rule],), Setting(rule, net_options=WIDE_SHALLOW), figures("wide-shallow", rule))
        for rule in ("bp", "fa", "dfa")
    ]
    entries += [
        Entry(
            (f"frozen, {RULES[rule]} stem",),
            Setting(rule, net_options=WIDE_SHALLOW, scope="frozen"),
            _frozen("wide-shallow", rule),
        )
        for rule in ("bp", "fa", "dfa")
    ]
    return audit(
        "wide-shallow",
        "ResMLP d=512 L=2 on CIFAR-10, 100 epochs: the latest paper's representative setting",
        records,
        ["rule"],
        entries,
        ["acc", "gamma", "h_norm", "g_norm", "growth", "depth", "depth_bp", "three", "four"],
    )


def cross_arch(records: Records) -> Table:
    """Which checks flag on which network: growth everywhere, the reference only under a terminal LayerNorm?"""
    entries = []
    for label, base, norm, where in networks(records):
        name = label if base.net != "student" else f"{label} on {base.data}"
        for rule in RULES if base.net == "small-cnn" else ("bp", "fa", "dfa"):
            entries.append(Entry((name, norm, RULES[rule]), replace(base, rule=rule), figures(where, rule)))
        for rule in ("bp", "dfa"):
            said = _frozen(where, rule)
            setting = replace(base, rule=rule, scope="frozen")
            if said or figures(where, "frozen"):
                entries.append(Entry((name, norm, f"frozen, {RULES[rule]} stem"), setting, said))
    return audit(
        "cross-arch",
        "Across networks: scale and reference with and without a terminal LayerNorm",
        records,
        ["network", "terminal LN", "rule"],
        entries,
        ["epochs", "acc", "h_norm", "g_norm", "growth", "scale", "reference", "depth", "depth_bp", "three"],
        [
            "of each network the longest runs there are; their epochs are in the table, and figures of longer ones are "
            "not compared",
            "StudentNet's published task (teacher-linear) is solved by a linear map: where BP gains less than 2 pp "
            "over its own frozen control, D3 is not tested; teacher is a task that needs depth",
            "004 says of FA without a terminal norm both that growth stays under 10 and that D1 flags",
        ],
    )


def cifar100(records: Records) -> Table:
    """The primary audit on CIFAR-100."""
    entries = [
        Entry((RULES[rule],), Setting(rule, data="cifar100"), figures("cifar100", rule)) for rule in ("bp", "fa", "dfa")
    ]
    entries += [
        Entry((f"frozen, {RULES[r]} stem",), Setting(r, data="cifar100", scope="frozen"), _frozen("cifar100", r))
        for r in ("bp", "fa", "dfa")
    ]
    none = not any(s.data == "cifar100" for s in known_settings(records))
    return audit(
        "cifar100",
        "CIFAR-100: ResMLP d=256 L=4, 100 epochs",
        records,
        ["rule"],
        entries,
        ["acc", "gamma", "h_norm", "g_norm", "growth", "depth", "depth_bp", "three", "four"],
        ["the commands need the files of CIFAR-100 under --root"] if none else [],
    )


def credit_site(records: Records) -> Table:
    """The module that writes a site gets its credit, or the one that reads it."""
    base = Setting("dfa", credit_site="reader")
    reader = [s for s in known_settings(records) if replace(s, rule="dfa", epochs=100, augment=False) == base]
    epochs = max((s.epochs for s in reader), default=100)
    return audit(
        "credit-site",
        f"Credit site: a block gets the credit of the site it writes or of the one it reads, {epochs} epochs",
        records,
        ["rule", "credit site"],
        [
            Entry((RULES[rule], site), Setting(rule, credit_site=site, epochs=epochs))
            for rule in ("fa", "dfa")
            for site in ("writer", "reader")
        ],
        ["acc", "gamma", "deep_cosine", "h_norm", "g_norm", "growth", "depth", "depth_bp", "three"],
        ["the documents don't compare the two; 004's indices read as reader"],
    )


def unit_credit(records: Records) -> Table:
    """Two things the documents leave open, chosen otherwise: do FA and DFA come out as published?"""
    entries = [
        Entry((RULES[rule],), Setting(rule, credit_site="reader", unit=True), figures("primary", rule))
        for rule in ("fa", "dfa")
    ]
    entries += [
        Entry((f"frozen, {RULES[rule]} stem",), Setting(rule, scope="frozen", unit=True), figures("primary", "frozen"))
        for rule in ("fa", "dfa")
    ]
    penalised = Setting("dfa", penalty=1e-2, epochs=30, credit_site="reader", unit=True)
    entries.append(Entry(("DFA, λ 0.01, 30 epochs",), penalised, figures("lambda-sweep", "dfa", penalty=1e-2)))
    return audit(
        "unit-credit",
        "Credit of unit length, of the site a block reads: ResMLP d=256 L=4 on CIFAR-10, 100 epochs unless said",
        records,
        ["rule"],
        entries,
        [
            "acc",
            "gamma",
            "deep_cosine",
            "h_norm",
            "g_norm",
            "growth",
            "stability",
            "depth",
            "depth_bp",
            "three",
            "four",
        ],
        [
            "published are the figures of the primary audit, whose documents state neither the length of a sample's "
            "credit nor, but for 004's indices, its site",
            "frozen blocks get no credit: there the stem's has unit length",
        ],
    )


def sub_modes(records: Records) -> Table:
    """Which kind of degenerate reference, by rule and seed."""
    rows, missing, kinds = [], [], set()
    for flag in variants(records, [Setting(rule) for rule in RULES]):
        for rule, name in RULES.items():
            setting = Setting(rule, augment=flag)
            j = judged(records, setting)
            missing += lacking(records, setting, controls=False)
            found_by_seed = {r.spec.seed: v for r, v in zip(j.runs, j.verdicts["four-diagnostic"])}
            for seed in sorted({*SEEDS, *found_by_seed}):
                verdict, said = found_by_seed.get(seed), figures("sub-modes", rule, seed=seed)
                kinds |= {f.kind for f in said}
                flags = [f.flagged for f in verdict.findings[:2]] if verdict else [None, None]
                stability = verdict.findings[2].value if verdict else None
                submode = None
                if verdict and verdict.measurement_valid is not None:
                    submode = "none: reference valid" if verdict.measurement_valid else verdict.submode or "not told"
                cells = {what: [f for f in said if f.what == what] for what in ("stability", "flag.submode")}
                found = {
                    "stability": agrees_any(stability, cells["stability"]),
                    "sub-mode": agrees_any(submode, cells["flag.submode"]),
                }
                rows.append(
                    [
                        name,
                        OURS[flag],
                        Cell(str(seed), seed),
                        *({True: "flags", False: "ok", None: NONE}[flag] for flag in flags),
                        spread(stat([stability]), "cos"),
                        published(cells["stability"]),
                        submode or NONE,
                        published(cells["flag.submode"]),
                        answer(found),
                    ]
                )
    return table(
        "sub-modes",
        "Sub-mode of a failed reference by rule and seed: primary audit",
        (
            "rule | figures | seed | (a) | (b) | stability | published stability | sub-mode | published sub-mode "
            "| agrees?"
        ),
        rows,
        [
            "a sub-mode is named only where (a) or (b) flags: drift-dominated above a stability of 0.30, "
            "else noise-dominated",
            "published ranges: healthy 0.05 to 0.18, drift 0.43 to 0.99 (003)",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def linear_probe(records: Records) -> Table:
    """The floor: what a linear model of the pixels reaches, and how far networks are above it."""
    try:
        probes, unread = read_linear_probe(records.folder), []
    except FormatError as error:
        probes, unread = {}, [f"not read: {error}"]
    rows, missing, kinds, lacks = [], [], set(), []
    for data in ("cifar10", "cifar100"):
        said: Sequence[Figure] = figures("linear-probe", data, what="acc")
        kinds |= {f.kind for f in said}
        floor = probes[data]["accuracy"] if data in probes else None
        label = [data, "linear model of the pixels", NONE, Cell("1", 1) if floor is not None else Cell("0", 0)]
        own = Cell(NONE) if floor is None else Cell(f"{floor:.3f}", floor)
        rows.append([*compare(label, own, floor, said)[:-2], NONE, *compare(label, own, floor, said)[-2:]])
        if floor is None:
            missing.append(
                f"linear probe on {data}: walkback evidence linear-probe --data {data} --root DIR "
                f"--from {records.folder}"
            )
        trained = RULES if data == "cifar10" else ("bp", "fa", "dfa")
        settings = [Setting(rule, data=data, scope=scope) for scope in ("frozen", "all") for rule in trained]
        for flag in variants(records, settings):
            for setting in settings:
                runs = select(records, replace(setting, augment=flag))
                lacks += lacking(records, replace(setting, augment=flag), controls=False)
                acc = stat(run.accuracy for run in runs)
                over = Cell(NONE) if floor is None or acc is None else _pp(acc, floor)
                rule = RULES[setting.rule]
                model = rule if setting.scope == "all" else f"frozen blocks, {rule} stem"
                n = Cell(str(len(runs)), len(runs))
                rows.append([data, model, OURS[flag], n, spread(acc, "acc"), over, NONE, NONE])
    return table(
        "linear-probe",
        "The pixels alone: multinomial logistic regression as a floor for ResMLP d=256 L=4, 100 epochs",
        ["data", "model", "figures", "n", "acc", "over the pixels, pp", "published", "agrees?"],
        rows,
        [*unread, *(f"recipe on {name}: {_recipe(record)}" for name, record in probes.items()), *rules(kinds)],
        [*missing, *commands(lacks, records.store)],
    )


def _pp(acc: Stat, floor: float) -> Cell:
    return spread(Stat(tuple(100 * (v - floor) for v in acc.values)), "pp")


def _recipe(record: dict) -> str:
    r = record["recipe"]
    return (
        f"{r['model']}; {r['name']} lr {r['lr']:g}, weight decay {r['weight_decay']:g}, {r['schedule']} schedule, "
        f"batch {r['batch_size']}, {r['epochs']} epochs, seed {r['seed']}; training accuracy "
        f"{record['train_accuracy']:.3f}"
    )
