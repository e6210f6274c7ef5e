"""PyTorch Lightning: a Watch as a callback, for `lightning` and for `pytorch_lightning`."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from walkback.errors import shown
from walkback.integrations.library import WatchCallback
from walkback.training.watch import Row, scalars

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


class LightningWatch(WatchCallback):
    """A Lightning callback that watches the network; its `.watch` is the Watch once training has started.

    Args:
        eval_batches: as in `Watch`, or the `module:function` that returns them, which a configuration file can name and
            every process of a launcher calls for itself.
        every: as in `Watch`; steps are optimiser steps (`trainer.global_step`), whatever is accumulated.
        network: the dotted path of the network inside the LightningModule, such as "net"; by default the module itself.
        accuracy: the name of a logged metric, a fraction. Each value goes into one row: that of its epoch's end or,
            with a cadence in steps, the last row measured in that epoch (which is logged again with it). A row of the
            last step has the last epoch's value. Epochs without a new value, or without a row, are left as they are.
        stop: end training when trust is lost.
        options: keywords of `Watch`: credit, edition, thresholds, anatomy, loss, log, live, to, max_overhead, …

    Whatever the cadence, the last step is measured too. Rows also go to the trainer's own loggers, under walkback/…
    Lightning's checkpoints hold the state of the watch: with `ckpt_path`, it goes on as training does.
    """

    base, extra = "Callback", "lightning"

    @staticmethod
    def modules() -> tuple[str, ...]:
        """Return the namespaces in use: they are two packages with two classes, and who loaded both gets both."""
        loaded = [name for name in _NAMESPACES if name in sys.modules]
        there = loaded or [name for name in _NAMESPACES if find_spec(name.partition(".")[0]) is not None][:1]
        return tuple(there or _NAMESPACES[:1])

    def __init__(
        self,
        eval_batches: Iterable[Any] | str,
        every: str | int = "epoch",
        *,
        network: str | None = None,
        accuracy: str | None = None,
        stop: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(eval_batches, every, network=network, stop=stop, **options)
        self.accuracy = accuracy
        self._metric: Any = None  # as it was when it was last looked at: Lightning keeps old ones, object and all
        self._epoch: dict[str, Any] = {}  # of the last epoch: the step it ended at, its accuracy; was one ever logged?

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        lengths = {"total_epochs": trainer.max_epochs, "total_steps": trainer.estimated_stepping_batches}
        planned = {name: int(n) for name, n in lengths.items() if n is not None and 0 < n < math.inf}

        def log(row: Row) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(scalars(row), step=trainer.global_step)

        start = {"end": trainer.global_step, "acc": {}, "logged": False}
        self._metric, self._epoch = None, self._state.get("epoch", start)
        options = {**planned, **self.options, "to": [*self.options.get("to", ()), log]}
        self._begin(pl_module, trainer.global_step, trainer.current_epoch, options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Count a step, but not while gradients are still being accumulated."""
        if trainer.global_step > self.watch.steps:
            self.watch.step(trainer.global_step)
            self._maybe_stop(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Count an epoch, with its accuracy."""
        metric = None if self.accuracy is None else trainer.callback_metrics.get(self.accuracy)
        new = {} if metric is None or metric is self._metric else {"acc": float(metric)}
        self._metric = metric
        if self.watch.epoch(trainer.current_epoch + 1, **new) is None:
            self.watch.amend(since=self._epoch["end"], **new)
        self._epoch = {"end": trainer.global_step, "acc": new, "logged": self._epoch["logged"] or bool(new)}
        self._maybe_stop(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.watch.finish(**(self._epoch["acc"] if self._epoch["end"] == trainer.global_step else {}))
        if self.accuracy is not None and not self._epoch["logged"]:
            names = ", ".join(trainer.callback_metrics) or "nothing"
            warnings.warn(  # an error would cost a training that has ended well
                f"Expected accuracy to name a logged metric, but {shown(self.accuracy)} is not among: {names}.",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"epoch": dict(self._epoch)} if self._epoch else {})

    def __getstate__(self) -> dict[str, Any]:
        theirs = ("log", "log_dict")  # which the trainer puts there: they hold its module
        return {k: v for k, v in super().__getstate__().items() if k not in theirs} | {"_metric": None}

    def _maybe_stop(self, trainer: Any) -> None:
        if self.stop and self.watch.should_stop:
            trainer.should_stop = True


lightning_callback = LightningWatch


def __getattr__(name: str) -> type:
    """Return `LightningCallback`: the same as a subclass of Lightning's Callback, which LightningCLI asks for."""
    if name == "LightningCallback":
        return LightningWatch.concrete()
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
