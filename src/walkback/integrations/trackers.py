"""A report in Weights & Biases, MLflow and TensorBoard: its table per site, its page, its figures."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from walkback.files import write_whole
from walkback.integrations.optional import library, mlflow_run, tensorboard_writer, wandb_run
from walkback.report.frame import site_table
from walkback.report.panels import limits_of, site_panels

if TYPE_CHECKING:
    from walkback.report.report import Report


def report_to_wandb(report: Report, run: Any = None, name: str = "walkback-report") -> Any:
    """Log the table per site, the numbers and the verdict to a run, and the report and its page as an artifact.

    Args:
        report: what `diagnose` or `judge` returned.
        run: what `wandb.init` returned; by default the run that is active.
        name: of the artifact.

    Returns the artifact.
    """
    wandb, active = library("wandb", "wandb"), wandb_run(run)
    columns, rows = site_table(report)
    active.log({"walkback/sites": wandb.Table(columns=columns, data=rows)})
    active.summary.update(_summary(report))
    artifact = wandb.Artifact(name, type="walkback-report", metadata=_summary(report))
    with TemporaryDirectory() as folder:
        for path in _files(report, Path(folder)):
            artifact.add_file(str(path))
        active.log_artifact(artifact)
    return artifact


def report_to_mlflow(report: Report, run_id: str | None = None, tracking_uri: str | None = None) -> None:
    """Log the report and its page as artifacts under walkback/, its scalars as metrics, its verdict as a tag.

    Args:
        report: what `diagnose` or `judge` returned.
        run_id: the run to log to; by default the one that is active.
        tracking_uri: where it is; by default what MLflow is set to.
    """
    _, client, run_id = mlflow_run(run_id, tracking_uri)
    for name, value in _summary(report).items():
        if isinstance(value, str):
            client.set_tag(run_id, name, value)
        else:
            client.log_metric(run_id, name, value)
    with TemporaryDirectory() as folder:
        for path in _files(report, Path(folder)):
            client.log_artifact(run_id, str(path), "walkback")


def report_to_tensorboard(report: Report, to: Any, step: int = 0) -> None:
    """Draw ‖h‖, ‖g‖ and the cosine over sites as figures, with the report's text beside them.

    Args:
        report: what `diagnose` or `judge` returned.
        to: a folder or a SummaryWriter.
        step: where on TensorBoard's axis.
    """
    library("tensorboard", "tensorboard")  # before anything is made
    figure, writer = library("matplotlib.figure", "report").Figure, tensorboard_writer(to)
    for panel in site_panels(report.per_layer, limits_of(report)):
        drawn = figure(figsize=(5, 3), layout="constrained")
        axes = drawn.subplots()
        axes.plot(range(len(panel.values)), [float("nan") if v is None else v for v in panel.values], marker="o")
        axes.set(xlabel="site", ylabel=panel.name, yscale="log" if panel.log else "linear")
        writer.add_figure(f"walkback/{_PLAIN[panel.name]}", drawn, step)
    writer.add_text("walkback/report", report.to_markdown(), step)
    writer.flush()


_PLAIN = {"‖h‖": "h_norm", "‖g‖": "g_norm", "cosine": "cosine"}


def _summary(report: Report) -> dict[str, Any]:
    """Return the verdict, the edition, and every scalar that was measured, under walkback/…"""
    scalars = {name: value for name, value in report.values.items() if value is not None and isfinite(value)}
    words = {"verdict": report.verdict_line.removeprefix("VERDICT: "), "edition": report.edition}
    return {f"walkback/{name}": value for name, value in {**words, **scalars}.items()}


def _files(report: Report, folder: Path) -> list[Path]:
    return [report.save(folder / "report.json"), write_whole(folder / "report.html", report.to_html())]
