"""What the blocks of a finished run are worth: measured on its own data, and kept in its record without retraining."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from walkback.data import Dataset, Split
from walkback.errors import FormatError
from walkback.files import encoded, write_together
from walkback.measures.depth import Depth, depth
from walkback.progress import quietly, say
from walkback.report.formats.logged import judge
from walkback.report.formats.sums import with_sum
from walkback.report.report import Report
from walkback.training.bundle import Bundle

TOGETHER = 1000  # samples


@dataclass(frozen=True)
class SplitBatches:
    """The samples of a split, in its order, prepared batch by batch: every pass gives the same ones."""

    data: Dataset
    split: Split
    device: torch.device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(self.split.x.split(TOGETHER), self.split.y.split(TOGETHER)):
            yield self.data.prepare(x.to(self.device)), y.to(self.device)


def run_depth(
    bundle: Bundle, data: Dataset, device: str | torch.device = "cpu", draws: int = 3, most: int | None = None
) -> Depth:
    """Return what the blocks of a bundle are worth on the train and test split of a data set.

    Blocks are drawn as the bundle's network draws them when it is built. With `most`, only that many samples of each
    split are used, the first ones.
    """
    model, where = bundle.model().to(device), torch.device(device)
    splits = [Split(split.x[:most], split.y[:most]) for split in (data.train, data.test)]
    say(
        f"depth: readouts are refitted on {len(splits[0])} training samples with the trained blocks and with {draws} "
        f"random draws of them, and compared on {len(splits[1])} test samples"
    )
    train, test = (SplitBatches(data, split, where) for split in splits)
    return depth(model, train, test, draws=draws, build=bundle.untrained)


def add_depth(bundle: Bundle, data: Dataset, device: str | torch.device = "cpu", most: int | None = None) -> None:
    """Measure what the blocks of a finished run are worth and keep it in its record, once.

    A run that diverged has none.
    """
    report = bundle.report()
    if report is not None and report.depth is None and not report.run.get("diverged"):
        with quietly():
            keep_depth(bundle, run_depth(bundle, data, device, most=most))


def keep_depth(bundle: Bundle, found: Depth) -> Report:
    """Write what the blocks are worth into the report of a finished run, judged with it, and return that report."""
    report = bundle.report()
    if report is None:
        raise FormatError(f"Expected a finished run at {bundle.path}, with its report.json, but there is none.")
    judged = judge(report, depth=found)
    names = ("verdict", "failed", "depth_used", "chain", "findings", "depth")
    kept = replace(report, **{name: getattr(judged, name) for name in names})
    text = kept.to_json() + "\n"
    files = {**with_sum(bundle.path, "report.json", text), "report.json": encoded(text)}
    try:
        write_together(bundle.path, files)
    except OSError as error:
        raise FormatError(f"Expected to write the report to {bundle.path}, but: {error}.") from None
    return kept
