"""The command line. Results go to standard output, everything else to standard error; no tracebacks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from walkback import __version__
from walkback.errors import InputError, WalkbackError

if TYPE_CHECKING:
    from walkback.audit import Plan
    from walkback.report.report import Report
    from walkback.report.table import Table
    from walkback.training.bundle import Bundle

EXIT = {"passes": 0, "walked back": 1, "undecided": 3}
USAGE = 2

app = App(
    name="walkback",
    help="Which of your feedback-alignment results would you have to walk back?\n\n"
    "`diagnose` and `judge` exit with 0 (passes), 1 (walked back), 3 (undecided); 2 is a wrong call or input.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `run` says that it stopped
)

Edition = Literal["three-check", "four-diagnostic", "intrinsic"]
Probes = Annotated[
    tuple[Literal["perturbation", "nudging", "fresh-b", "intrinsic"], ...],
    Parameter(consume_multiple=True, negative=()),
]
Accuracies = Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative=())]
Flag = Annotated[bool, Parameter(negative=())]


@app.command
def diagnose(
    target: str,
    *,
    data: str | None = None,
    root: Path | None = None,
    headline_acc: Accuracies = (),
    frozen_acc: Accuracies = (),
    bp_acc: Accuracies = (),
    bp_frozen_acc: Accuracies = (),
    edition: Edition | None = None,
    thresholds: Path | None = None,
    probes: Probes = (),
    chunk: int | None = None,
    pairing: Literal["site", "shifted"] | None = None,
    method: str = "",
    notes: str = "",
    out: Path | None = None,
    device: str = "cpu",
    json: Flag = False,
) -> int:
    """Measure a trained network and judge it.

    Parameters
    ----------
    target
        `module:function` that returns (model, batches) or a dict of `walkback.diagnose` arguments;
        or the folder of a run or bundle.
    data
        For a run or bundle: a data set by name, or `module:function` that returns a Dataset or the evaluation batches.
    root
        For a run or bundle: where the data set is.
    headline_acc
        The accuracy you would publish, 0…1; several for several seeds.
    frozen_acc
        The same with frozen random blocks; several for several seeds. Of a run, that of the control beside it.
    bp_acc
        BP's accuracy on the task; where it does not beat frozen blocks either, D3 is not tested. Of a run, that of the
        BP runs beside it.
    bp_frozen_acc
        BP's accuracy with frozen random blocks, where --frozen-acc is of a stem that another rule trained.
    edition
        Which form of the protocol judges: three-check unless the function says otherwise; intrinsic runs every batch
        once more in float64.
    thresholds
        JSON or TOML file with other limits.
    probes
        Extra measurements: perturbation, nudging, fresh-b, intrinsic.
    chunk
        Run batches in parts of at most so many samples: the same numbers in less memory.
    pairing
        site (the default), or shifted: the credit of each site with the gradient of the one below, for comparing with
        published figures of FA.
    method
        Name shown in the report.
    notes
        Line shown in the report.
    out
        Also write the report there: .json, .html, .md, .tex or .txt.
    device
        For a run or bundle: where to measure: cpu, cuda, mps.
    json
        Print the report as JSON.
    """
    from walkback.api import diagnose as run
    from walkback.verdict.checks import DiagnosticThresholds

    _check_out(out)
    limits = None if thresholds is None else DiagnosticThresholds.load(thresholds)
    with _theirs_aside():
        wanted: dict[str, Any] = _target(target, data, root, device)
        for key, value in (
            ("headline_acc", _one_or_many(headline_acc)),
            ("frozen_baseline_acc", _one_or_many(frozen_acc)),
            ("bp_acc", _one_or_many(bp_acc)),
            ("bp_frozen_acc", _one_or_many(bp_frozen_acc)),
            ("thresholds", limits),
            ("edition", edition),
            ("probes", probes),
            ("chunk", chunk),
            ("pairing", pairing),
            ("method_name", method),
            ("notes", notes),
        ):
            if value is not None and value != () and value != "":
                wanted[key] = value
        if headline_acc or frozen_acc:  # the predictions beside a run are not theirs
            wanted.pop("correct", None)
        if bp_acc and not bp_frozen_acc:  # nor is the control of the BP beside it that of another
            wanted.pop("bp_frozen_acc", None)
        known = list(signature(run).parameters)
        unknown = [key for key in wanted if key not in known]
        if unknown:
            raise InputError(
                f"Expected {target} to give arguments of diagnose ({', '.join(known)}), but got {unknown[0]}."
            )
        report = run(**wanted)
    return _finish(report, out, json)


@app.command
def anatomy(target: str, *, json: Flag = False) -> int:
    """What would be measured on a network, as a picture: stem, blocks, readout, and what had to be guessed.

    Parameters
    ----------
    target
        `module:function` that returns a model, (model, batches), or a dict of `walkback.diagnose` arguments. With
        batches the first one is run, which shows more: shapes, where the readout reads, what blocks return.
    json
        Print it as JSON.
    """
    from walkback.entry import call_entry
    from walkback.tracing.picture import picture

    with _theirs_aside():
        value = call_entry(target)
        if isinstance(value, (tuple, list)) and len(value) == 2:
            value = {"model": value[0], "eval_batches": value[1]}
        given: dict[str, Any] = dict(value) if isinstance(value, dict) else {"model": value}
        if "model" not in given:
            raise InputError(
                f"Expected {target} to return a model, (model, batches) or a dict with model, but got a dict with "
                f"{', '.join(map(str, given)) or 'nothing'}."
            )
        found = picture(given["model"], given.get("anatomy"), given.get("eval_batches"), given.get("loss"))
    if json:
        _print_json(found.to_dict())
    else:
        _print(str(found))
    return 0


@app.command
def judge(
    numbers: Path,
    *,
    headline_acc: Accuracies = (),
    frozen_acc: Accuracies = (),
    bp_acc: Accuracies = (),
    bp_frozen_acc: Accuracies = (),
    edition: Edition | None = None,
    thresholds: Path | None = None,
    method: str = "",
    notes: str = "",
    out: Path | None = None,
    json: Flag = False,
) -> int:
    """Judge numbers logged by any framework.

    Parameters
    ----------
    numbers
        A report or dict as .json, or one row per epoch or step as .jsonl or .csv (columns h_norm_0, g_norm_0, …), such
        as a Watch's history or a run's trajectory.jsonl: then it also tells when each check fired, and what was left.
    headline_acc
        Accuracy, 0…1, where the file has none; several for several seeds.
    frozen_acc
        Accuracy with frozen random blocks, where the file has none; several for several seeds.
    bp_acc
        BP's accuracy on the task; where it does not beat frozen blocks either, D3 is not tested.
    bp_frozen_acc
        BP's accuracy with frozen random blocks, where --frozen-acc is of a stem that another rule trained.
    edition
        Which form of the protocol judges: three-check unless the file is a report of another.
    thresholds
        JSON or TOML file with other limits.
    method
        Name shown in the report.
    notes
        Line shown in the report.
    out
        Also write the report there: .json, .html, .md, .tex or .txt.
    json
        Print the report as JSON.
    """
    from walkback.report.formats.logged import judge as run
    from walkback.verdict.checks import DiagnosticThresholds

    _check_out(out)
    report = run(
        numbers,
        edition,
        None if thresholds is None else DiagnosticThresholds.load(thresholds),
        headline_acc=_one_or_many(headline_acc),
        frozen_baseline_acc=_one_or_many(frozen_acc),
        bp_acc=_one_or_many(bp_acc),
        bp_frozen_acc=_one_or_many(bp_frozen_acc),
        method_name=method,
        notes=notes,
    )
    return _finish(report, out, json)


@app.command
def train(
    *,
    net: str = "resmlp",
    rule: str = "bp",
    data: str = "cifar10",
    scope: Literal["all", "frozen"] = "all",
    epochs: int = 100,
    seed: int = 42,
    penalty: float = 0.0,
    augment: Flag = False,
    penalty_over: Literal["sum", "mean"] = "sum",
    penalty_stem: Flag = False,
    credit_site: Literal["writer", "reader"] = "writer",
    credit_length: Literal["raw", "unit", "rms"] = "raw",
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    batch_size: int = 128,
    schedule: Literal["cosine", "constant"] = "cosine",
    net_options: str = "{}",
    rule_options: str = "{}",
    root: Path | None = None,
    out: Path = Path("runs"),
    device: str = "cpu",
    json: Flag = False,
) -> int:
    """Train one network with one rule, measured after every epoch; goes on where it was stopped.

    Parameters
    ----------
    net
        resmlp, vit-mini, student, small-cnn, or `module:function`.
    rule
        bp, fa, dfa, state-bridge, credit-bridge, ep, or `module:function`.
    data
        teacher, teacher-linear, cifar10, cifar100, fashion-mnist, or `module:function`.
    scope
        frozen leaves the blocks at their random initialisation: the control of D3.
    epochs
        Passes over the training split.
    seed
        Of initialisation, feedback, order and augmentation.
    penalty
        λ of λ‖f‖² for every block.
    penalty_over
        Whether the squares of all features are added up or averaged.
    penalty_stem
        Penalise what the stem writes as well.
    augment
        Random flips and crops.
    credit_site
        Whether a block gets the credit of the site it writes or of the one it reads.
    credit_length
        Length of every sample's credit: as the rule gives it, 1, or √d.
    lr
        Learning rate of AdamW.
    weight_decay
        Of AdamW.
    batch_size
        Of training.
    schedule
        Of the learning rate.
    net_options
        Keywords of the network, as JSON: '{"width": 512}'.
    rule_options
        Keywords of the rule, as JSON.
    root
        Where the data set is.
    out
        The store of runs; this one goes into a folder of its own.
    device
        cpu, cuda, mps.
    json
        Print the report as JSON.
    """
    from walkback.audit import store
    from walkback.audit.run import sigterm_interrupts
    from walkback.training.loop import train as run
    from walkback.training.spec import RunSpec

    spec = RunSpec(
        net=net,
        rule=rule,
        data=data,
        scope=scope,
        epochs=epochs,
        seed=seed,
        penalty=penalty,
        augment=augment,
        penalty_over=penalty_over,
        penalty_stem=penalty_stem,
        credit_site=credit_site,
        credit_length=credit_length,
        net_options=_json_object("--net-options", net_options),
        rule_options=_json_object("--rule-options", rule_options),
        optimiser={"lr": lr, "weight_decay": weight_decay, "schedule": schedule, "batch_size": batch_size},
    )
    try:
        with _theirs_aside(), sigterm_interrupts():
            bundle = run(spec, out, root=root, device=device)
    except KeyboardInterrupt:
        done = store.progress(out, spec).get("epoch", 0)
        saved = f"{done} of {epochs} epochs of {spec.name} are saved in {out}; the same command goes on from there."
        print(saved if done else "No epoch was finished: the same command starts anew.", file=sys.stderr)
        raise
    report = bundle.report()
    assert report is not None  # its presence is what makes a run finished
    if json:
        _print_json(report.to_dict())
    else:
        _print(f"{report}\n\n{bundle.path}")
    return 0


@app.command
def demo(*, out: Path = Path("runs/demo"), seed: int = 0, workers: int | None = None, json: Flag = False) -> int:
    """Train BP, FA and DFA and their frozen controls on the embedded task, and diagnose each: about a minute.

    Parameters
    ----------
    out
        Where bundles and reports go; what is trained there is not trained again.
    seed
        Of all runs.
    workers
        Processes, one thread each; as many as there are cores by default.
    json
        Print {"runs": [report, …]}.
    """
    from walkback.audit.demo import demo as run
    from walkback.audit.demo import table

    reports = run(out, seed, workers)
    if json:
        _print_json({"runs": [report.to_dict() for report in reports]})
    else:
        told = "\n\n".join(str(report) for report in reports)
        _print(f"{told}\n\n{table(reports)}\n\nbundles and reports: {out}")
    return 0


@app.command
def audit(
    plan: str | None = None,
    *,
    executor: Literal["local", "ray", "slurm"] = "local",
    workers: int | None = None,
    root: Path | None = None,
    out: Path = Path("runs"),
    retries: int = 1,
    threads: int = 1,
    device: str = "cpu",
    address: str | None = None,
    options: str = "{}",
    list: Flag = False,
    json: Flag = False,
) -> int:
    """Train what is missing of a plan, many runs at a time; goes on where it was stopped. Exit 1 if runs failed.

    Parameters
    ----------
    plan
        A plan by name (see --list), or a .toml file of your own.
    executor
        local: processes on this machine; ray: a Ray cluster; slurm: a Slurm cluster.
    workers
        How many runs at a time; as many as there is room for by default.
    root
        Where the data sets are.
    out
        The store of runs; several audits may share it.
    retries
        How often a run whose worker died is tried again.
    threads
        Of each worker.
    device
        Of each worker: cpu, cuda, mps.
    address
        Of the Ray cluster; without it one is started on this machine.
    options
        Keywords of the executor, as JSON: '{"partition": "short"}' of Slurm.
    list
        Only list the plans (or the one given): runs, how many of them are finished in --out, and what they cost on
        this machine, from a calibration of about ten seconds.
    json
        Print the outcome, or the list, as JSON.
    """
    from walkback.audit import audit as run
    from walkback.audit import names
    from walkback.audit import plan as find

    if list:
        return _list_plans([find(name) for name in ([plan] if plan else names())], out, root, json)
    if plan is None:
        raise InputError(f"Expected a plan ({', '.join(names())}) or a .toml file, but got none. --list tells of each.")
    if address is not None and executor != "ray":
        raise InputError(f"Expected --address only with --executor ray, but the executor is {executor}.")
    more = _json_object("--options", options)
    own = [key for key in more if key in signature(run).parameters]
    if own:
        raise InputError(
            f"Expected --options to have keywords of the executor, but {own[0]} is one of the audit's own: "
            + ("leave it out." if own[0] == "quiet" else f"give it as --{own[0]}.")
        )
    if address is not None:
        more["address"] = address
    with _theirs_aside():
        outcome = run(plan, out, executor, workers, root=root, retries=retries, threads=threads, device=device, **more)
    if json:
        _print_json(outcome.to_dict())
    else:
        _print(str(outcome))
    return 1 if outcome.failed else 0


@app.command
def evidence(
    name: str | None = None,
    *,
    folder: Annotated[Path, Parameter(name="--from")] = Path("results"),
    out: Path | None = None,
    list: Flag = False,
    root: Path | None = None,
    data: str | None = None,
    json: Flag = False,
) -> int:
    """Tables of the papers' evidence from finished runs, beside the published figures.

    Parameters
    ----------
    name
        A table (see --list), or all.
    folder
        Where the runs are, however deep.
    out
        Also write it there: .md, .tex, .csv, .json or .txt; or a folder, with one .md per table and an index.
    list
        Name the tables.
    root
        Only for linear-probe: train it on the data set found there, and record it in the folder of the runs.
    data
        Only for linear-probe: train it on this data set (cifar10 by default).
    json
        Print as JSON.
    """
    from walkback.audit.records import read_records
    from walkback.replication.tables import TABLES, describe, evidence, front_page

    if list or name is None:
        if name is None and not list:
            raise InputError(f"Expected a table to show: one of {', '.join(TABLES)}, or all.")
        names = {table: describe(table) for table in TABLES}
        width = max(len(table) for table in names)
        _print_json(names) if json else _print("\n".join(f"{n:{width}}  {text}" for n, text in names.items()))
        return 0
    _check_tables_out(out, name)
    if root is not None or data is not None:
        if name != "linear-probe":
            raise InputError(f"Expected --root and --data only with linear-probe, which is trained, but got {name!r}.")
        from walkback.replication.tables.linear_probe import train_linear_probe

        train_linear_probe(data or "cifar10", root, folder)
    records = read_records(folder)
    tables = [evidence(one, records) for one in (TABLES if name == "all" else [name])]
    for problem in records.problems:
        print(f"not used: {problem.path}: {problem.reason}", file=sys.stderr)
    if not records:
        print(f"no finished runs under {folder}: what would train them is listed under Missing", file=sys.stderr)
    if out is not None and out.suffix:
        _write_text(out, _tables_as(tables, out.suffix))
    elif out is not None:
        for table in tables:
            _write_text(out / f"{table.name}.md", table.to_markdown())
        if name == "all":
            _write_text(out / "index.md", front_page(tables, records))
    if json:
        found = [table.to_dict() for table in tables]
        problems = [{"path": str(p.path), "reason": p.reason} for p in records.problems]
        _print_json({"tables": found, "problems": problems} if name == "all" else {**found[0], "problems": problems})
    elif name == "all" and out is not None:
        _print(f"{len(tables)} tables from {len(records)} runs: {out}")
    else:
        _print("\n\n".join(str(table) for table in tables))
    return 0


@app.command
def report(
    folder: Path,
    *,
    out: Path | None = None,
    tables: Path | None = None,
    figures: Path | None = None,
    template: Path | None = None,
    json: Flag = False,
) -> int:
    """One page about all runs of a store: verdicts first, then every run with its figures.

    Parameters
    ----------
    folder
        Where the runs are, however deep.
    out
        The page, .html: one file that needs no network. report.html if nothing else is asked for.
    tables
        Also write the tables into this folder.
    figures
        Also write the figures into this folder.
    template
        Also fill the reporting template and write it there.
    json
        Print what was written and the verdicts as JSON.
    """
    if (out, tables, figures, template) == (None, None, None, None):
        out = Path("report.html")
    _check_page_out(out)
    if template is not None and template.suffix not in (".md", ".txt", ""):
        raise InputError(f"Expected --template to end in .md: it is written as Markdown, but got {template}.")
    from walkback.audit.records import read_records
    from walkback.replication.page import page_data, render

    records = read_records(folder)
    data = page_data(records)
    if out is not None:
        _write_text(out, render(data))
    if tables is not None:
        from walkback.replication.forms import save_tables

        save_tables(records, tables)
    if figures is not None:
        from walkback.replication.figures import save_figures

        save_figures(records, figures)
    if template is not None:
        from walkback.replication.template import fill_template

        fill_template(records, template)
    written = {"page": out, "tables": tables, "figures": figures, "template": template}
    written = {what: str(path) for what, path in written.items() if path is not None}
    for path, reason in data["problems"]:
        print(f"not used: {path}: {reason}", file=sys.stderr)
    if json:
        _print_json({"written": written, **{k: data[k] for k in ("summary", "settings", "missing", "problems")}})
    else:
        _print("\n".join([data["summary"], *(f"{what}: {path}" for what, path in written.items())]))
    return 0


@app.command
def calibrate(
    *,
    count: int = 240,
    seed: int = 0,
    nets: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    dtypes: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    results: Path | None = None,
    thresholds: Path | None = None,
    refit: Path | None = None,
    out: Path | None = None,
    json: Flag = False,
) -> int:
    """Count every check's errors on generated networks whose answers are known.

    Parameters
    ----------
    count
        How many networks to generate; 240 take about two minutes.
    seed
        Of what is done to them.
    nets
        Families: resmlp, student, vit-mini; all unless given.
    dtypes
        float32, float64, bfloat16, float16; all unless given, half of the networks in the first.
    results
        A folder with finished runs, which are scored as well.
    thresholds
        JSON or TOML file with other limits than the published ones.
    refit
        Write the thresholds with the fewest errors here: a JSON file that `--thresholds` takes.
    out
        Write calibration.json and calibration.md into this folder.
    json
        Print the scores as JSON.
    """
    from walkback import calibration
    from walkback.verdict.checks import DiagnosticThresholds

    if count < 1:
        raise InputError(f"Expected count to be at least 1, but got {count}.")
    limits = None if thresholds is None else DiagnosticThresholds.load(thresholds)
    chosen = {"nets": nets or tuple(calibration.NETS), "dtypes": dtypes or calibration.DTYPES}
    done = calibration.calibrate(count, seed, **chosen, results=results, thresholds=limits)
    if refit is not None:
        done.fitted.save(refit)
    if out is not None:
        done.save(out)
    if json:
        _print_json(done.to_dict())
    else:
        _print(str(done))
        if refit is not None:
            _print(f"\nwrote {refit}")
    return 0


@app.command
def pitfalls(
    action: Literal["run"] | None = None, name: str | None = None, *, seed: int = 0, json: Flag = False
) -> int:
    """Fifteen ways to a wrong number: list them, or `run` one or all to see the wrong and the right number.

    Parameters
    ----------
    action
        run: compute them here and now; without it they are listed.
    name
        With run: a pitfall by name, number or code, or all.
    seed
        Of everything that is drawn.
    json
        Print as JSON.
    """
    from walkback.pitfalls import CATALOGUE, find, run, table
    from walkback.progress import track

    if action is None:
        rows = [{"number": e.number, "name": e.name, "title": e.title, "found_by": e.detector} for e in CATALOGUE]
        width = max(len(e.name) for e in CATALOGUE)
        told = "\n".join(f"{e.code}  {e.name:{width}}  {e.title}" for e in CATALOGUE)
        _print_json({"pitfalls": rows}) if json else _print(
            f"{told}\n\nwalkback pitfalls run NAME|all shows the numbers"
        )
        return 0
    if name is None:
        raise InputError("Expected a pitfall to run, by name, number or code, or all, but got none.")
    wanted = CATALOGUE if name == "all" else [find(name)]
    shown = [run(entry.name, seed) for entry in track(wanted, "running the pitfalls", len(wanted))]
    if json:
        _print_json({"seed": seed, "pitfalls": [one.to_dict() for one in shown]})
    else:
        why = "" if name == "all" else f"\n\n{shown[0].title}: {shown[0].explanation}\n{find(name).page}"
        _print(table(shown) + why)
    return 0


@app.command
def lint(path: Path, *more: Path, json: Flag = False) -> int:
    """Scan evaluation scripts for pitfalls, without running them. Exit 0: nothing found, 1: findings, 2: not readable.

    Parameters
    ----------
    path
        A .py or .ipynb file, or a folder with such files. `# walkback: ignore[P02]` on a line silences P02 there.
    more
        Further files and folders.
    json
        Print the findings as JSON.
    """
    from walkback.lint import lint as run

    found = run(path, *more)
    _print_json(found.to_dict()) if json else _print(str(found))
    for problem in found.problems:
        print(f"error: {problem}", file=sys.stderr)
    return USAGE if found.problems else 1 if found.findings else 0


@app.command
def doctor(*, root: Path | None = None, json: Flag = False) -> int:
    """Check this installation: versions, devices, data sets, and the measurement itself against closed forms.

    Parameters
    ----------
    root
        Where to look for data sets.
    json
        Print the findings as JSON.
    """
    import platform

    import torch

    from walkback import selftest
    from walkback.api import diagnose as run
    from walkback.data import inventory

    data = inventory(root)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are tiny: on a busy machine threads only wait for each other
    try:
        errors = selftest.closed_form_errors()
        verdicts = {
            case.name: run(case.model, selftest.batches(), case.headline_acc, case.frozen_acc).failed
            == case.three_check
            for case in selftest.cases()
        }
    finally:
        torch.set_num_threads(threads)
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    healthy = max(errors.values()) < 1e-9 and all(verdicts.values())
    found = {
        "walkback": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": devices,
        "threads": threads,
        "data": data,
        "closed_form_error": errors,
        "known_networks": verdicts,
        "ok": healthy,
    }
    if json:
        _print_json(found)
    else:
        rows = [
            ("walkback", __version__),
            ("python", f"{found['python']} on {platform.system()} {platform.machine()}"),
            ("torch", f"{torch.__version__}, {found['threads']} threads"),
            ("devices", ", ".join(devices)),
            *((f"data: {name}", _where(here)) for name, here in data.items()),
            *((f"closed form: {k}", f"relative error {v:.1e}") for k, v in errors.items()),
            *((f"known network: {k}", "as expected" if v else "WRONG VERDICT") for k, v in verdicts.items()),
        ]
        width = max(len(name) for name, _ in rows)
        sound = "The instrument is sound." if healthy else "The instrument is NOT sound on this machine: do not use it."
        table = [f"{name:{width}}  {text}" for name, text in rows]
        absent = {name: here["how_to_get"] for name, here in data.items() if not here["found"]}
        advice = [line for name, how in absent.items() for line in (f"To get {name}:", *(f"  {h}" for h in how))]
        _print("\n".join([*table, *advice, sound]))
    return 0 if healthy else 1


def _where(here: dict[str, Any]) -> str:
    if not here["found"]:
        return f"not found in {', '.join(here['looked_in'])}"
    return here["where"] + ("; to read it: pip install 'walkback[data]'" if here["needs"] else "")


# -- plumbing ------------------------------------------------------------------------------------------------


def _claim_beside(bundle: Bundle) -> dict[str, Any]:
    """What diagnose takes of a run's control and of BP in the same store, said on standard error; {} without them."""
    from walkback.audit.records import read_beside
    from walkback.audit.settings import claimed
    from walkback.training.control import control_spec
    from walkback.training.spec import RunSpec
    from walkback.verdict.checks import accuracies

    spec = RunSpec(**{name: bundle.spec[name] for name in RunSpec.model_fields if name in bundle.spec})
    records = read_beside(bundle.path.parent, spec)
    run, control = records.find(spec), records.find(control_spec(spec))
    if spec.scope == "frozen" or run is None or control is None:
        return {}
    if records.control(run) is None:
        print(f"no frozen control: {control.path.name} beside it had other data of the same name", file=sys.stderr)
        return {}
    claim = claimed(records, run)
    print(f"frozen control: {control.path.name} beside it, accuracy {control.accuracy}", file=sys.stderr)
    found = {"frozen_baseline_acc": control.accuracy, "correct": claim.correct}
    if claim.bp is not None:
        pairs = zip(accuracies("bp_acc", claim.bp), accuracies("bp_frozen_acc", claim.bp_frozen))
        gains = ", ".join(f"{ours:g} against {frozen:g}" for ours, frozen in pairs)
        print(f"BP in the same setting beside it, against its own frozen control: {gains}", file=sys.stderr)
        found |= {"bp_acc": claim.bp, "bp_frozen_acc": claim.bp_frozen}
    return found


def _target(target: str, data: str | None, root: Path | None, device: str) -> dict[str, Any]:
    from walkback.entry import call_entry, is_entry

    if is_entry(target) and not Path(target).exists():
        given = {"--data": data is not None, "--root": root is not None, "--device": device != "cpu"}
        if odd := [name for name, there in given.items() if there]:
            raise InputError(f"Expected {odd[0]} only with a bundle, but {target} is an entry that brings its own.")
        value = call_entry(target)
        if isinstance(value, dict) and {"model", "eval_batches"} <= set(value):
            return dict(value)
        if isinstance(value, (tuple, list)) and len(value) == 2:
            return {"model": value[0], "eval_batches": value[1]}
        raise InputError(
            f"Expected {target} to return (model, batches) or a dict with model and eval_batches, but got "
            f"{type(value).__name__}."
        )
    if not Path(target).exists():
        raise InputError(f"Expected a bundle folder or module:function, but {target!r} is neither.")
    from walkback.training.bundle import load_bundle

    bundle = load_bundle(target)
    source = data or bundle.spec.get("data")
    if not isinstance(source, str):
        raise InputError("Expected --data module:function with the evaluation batches, but got none.")
    model = bundle.model()
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # what torch raises for an unknown and for an absent one
        raise InputError(f"Expected a device that torch has here, but got {device!r}: {error}.") from None
    found: dict[str, Any] = {"model": model, "eval_batches": _batches(bundle, source, root, device)}
    if "input_shape" in bundle.spec:  # a run of ours: the credit of its rule, the accuracy on its own data
        report = bundle.report()
        found["credit"] = bundle.rule(model)
        if report is not None:
            found["method_name"] = report.method
            found["headline_acc"] = report.headline_acc if source == bundle.spec["data"] else None
        if found.get("headline_acc") is not None:
            found |= _claim_beside(bundle)
    for key in ("headline_acc", "frozen_baseline_acc", "method_name", "notes"):
        if bundle.spec.get(key) is not None:
            found[key] = bundle.spec[key]
    return found


def _batches(bundle: Bundle, source: str, root: Path | None, device: str) -> Iterator[tuple[Any, Any]]:
    """The probe set of a data set, or the batches of an entry, on the device and of the shape the network wants."""
    import torch

    from walkback.data import Dataset, load
    from walkback.data.dataset import checked
    from walkback.entry import call_entry, is_entry
    from walkback.network.batch import mapped, pairs
    from walkback.training.loop import probe_batches

    given = {} if root is None else {"root": root}
    value = call_entry(source, **given) if is_entry(source) else load(source, root)
    batches = probe_batches(checked(value), torch.device("cpu")) if isinstance(value, Dataset) else value
    shape = bundle.spec.get("input_shape")

    def fitting() -> Iterator[tuple[Any, Any]]:
        for batch in pairs(batches):
            known = (torch.Tensor, Mapping)
            x, y = (mapped(part, lambda t: t.to(device)) if isinstance(part, known) else part for part in batch)
            if shape is not None and isinstance(x, torch.Tensor) and x.shape[1:] != tuple(shape):
                raise InputError(
                    f"Expected inputs of shape {tuple(shape)}, for which the network of {bundle.path} was built, but "
                    f"{source} has {tuple(x.shape[1:])}."
                )
            yield x, y

    return fitting()


def _list_plans(plans: Sequence[Plan], out: Path, root: Path | None, as_json: bool) -> int:
    from tabulate import tabulate

    from walkback.audit.cost import costs

    with _theirs_aside():
        rows = [cost.to_dict() for cost in costs(plans, out, root)]
    if as_json:
        _print_json({"out": str(out), "plans": rows})
        return 0
    head = ["plan", "runs", "models", "settings", "finished", "CPU-hours", "left", "about"]
    keys = ["plan", "runs", "models", "settings", "finished", "cpu_hours", "cpu_hours_left", "about"]
    cells = [[f"{row[key]:.1f}" if "hours" in key else row[key] for key in keys] for row in rows]
    told = tabulate(cells, head, maxcolwidths=[None] * 7 + [56], disable_numparse=True, colalign=_ALIGN)
    _print(
        f"{told}\n\nruns: models and the frozen controls that D3 compares them with; finished: in {out}; "
        "CPU-hours: of one core of\nthis machine when it does nothing else, for all runs and for those that are left"
    )
    return 0


_ALIGN = ("left", *["right"] * 6, "left")


def _one_or_many(values: tuple[float, ...]) -> float | list[float] | None:
    return None if not values else values[0] if len(values) == 1 else list(values)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"Expected {name} to be a JSON object, but: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"Expected {name} to be a JSON object, but got {text}.")
    return value


def _check_out(out: Path | None) -> None:
    """Refuse a file we would not write before anything is measured."""
    if out is not None and out.suffix not in (".json", ".html", ".md", ".tex", ".txt"):
        raise InputError(f"Expected --out to end in .json, .html, .md, .tex or .txt, but got {str(out)!r}.")


def _check_page_out(out: Path | None) -> None:
    if out is None:
        return
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"Expected --out to end in .html, the page is one file, but got {str(out)!r}.")
    if out.is_dir():
        raise InputError(f"Expected --out to be a file, but {out} is a folder. Write --out {out / 'report.html'}.")
    if not out.parent.is_dir():
        raise InputError(
            f"Expected the folder of --out to be there, but {out.parent} is not. Make it: mkdir -p {out.parent}."
        )


def _check_tables_out(out: Path | None, name: str) -> None:
    known = (".md", ".tex", ".csv", ".json", ".txt")
    if out is not None and out.suffix and out.suffix not in known:
        raise InputError(f"Expected --out to be a folder or to end in {', '.join(known)}, but got {str(out)!r}.")
    if out is not None and out.suffix == ".csv" and name == "all":
        raise InputError("Expected one table for a .csv file, but got all of them: they have different columns.")


def _tables_as(tables: Sequence[Table], suffix: str) -> str:
    if suffix == ".json":
        found = [table.to_dict() for table in tables]
        return json.dumps(found if len(found) > 1 else found[0], indent=2, ensure_ascii=False, allow_nan=False)
    render = {".md": "to_markdown", ".tex": "to_latex", ".csv": "to_csv", ".txt": "__str__"}[suffix]
    return "\n\n".join(getattr(table, render)() for table in tables)


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"Expected to write {path}, but: {error}.") from None


def _finish(report: Report, out: Path | None, as_json: bool) -> int:
    if out is not None and out.suffix == ".json":
        report.save(out)
    elif out is not None:
        forms = {".html": report.to_html, ".md": report.to_markdown, ".tex": report.to_latex, ".txt": report.__str__}
        _write_text(out, forms[out.suffix]())
    if as_json:
        _print_json(report.to_dict())
    else:
        _print(str(report))
    return EXIT[report.verdict]


@contextmanager
def _theirs_aside() -> Iterator[None]:
    """What the user's own code prints, and what the programs that it calls print, must not end up in our JSON."""
    try:
        ours = os.dup(1)
    except OSError:  # closed
        with redirect_stdout(sys.stderr):
            yield
        return
    try:
        sys.stdout.flush()
        with suppress(OSError):  # no standard error
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _print_json(value: Any) -> None:
    utf8 = _encoding().lower().replace("-", "") == "utf8"
    _print(json.dumps(value, indent=2, ensure_ascii=not utf8, allow_nan=False))


def _print(text: str) -> None:
    """Print, also where the terminal has no ‖ or Γ, and where the reader (`| head`) has left."""
    encoding = _encoding()
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush on exit


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "ascii"


def main(tokens: Sequence[str] | None = None) -> None:
    """The `walkback` command."""
    sys.exit(run(sys.argv[1:] if tokens is None else tokens))


def run(tokens: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(list(tokens), exit_on_error=False, print_error=True, result_action="return_value")
        return code if isinstance(code, int) else 0
    except CycloptsError:
        return USAGE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("WALKBACK_TRACEBACK"):
            raise
        text = str(error) if isinstance(error, WalkbackError) else f"{type(error).__name__}: {error}"
        for note in getattr(error, "__notes__", []):
            text += f" {note}"
        print(f"error: {text}", file=sys.stderr)
        if not isinstance(error, WalkbackError) or error.__cause__ is not None:
            print("Set WALKBACK_TRACEBACK=1 to see where it comes from.", file=sys.stderr)
        return USAGE
