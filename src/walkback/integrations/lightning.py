"""PyTorch Lightning: a Watch as a callback, for `lightning` and for `pytorch_lightning`."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from walkback.integrations.library import library, part
from walkback.training.watch import Row, Watch, check_options, scalars

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(
    eval_batches: Iterable[Any],
    every: str | int = "epoch",
    *,
    network: str | None = None,
    accuracy: str | None = None,
    stop: bool = False,
    **options: Any,
) -> Any:
    """A Lightning callback that watches the network; its `.watch` is the Watch once training has started.

    Args:
        eval_batches: as in `Watch`.
        every: as in `Watch`; steps are optimiser steps (`trainer.global_step`), whatever is accumulated.
        network: the dotted path of the network inside the LightningModule, such as "net"; by default the module itself.
        accuracy: the name of a logged metric, a fraction. Each value goes into one row: that of its epoch's end or,
            with a cadence in steps, the last row measured in that epoch (which is logged again with it). A row of the
            last step has the last epoch's value. Epochs without a new value, or without a row, are left as they are.
        stop: end training when trust is lost.
        options: keywords of `Watch`: credit, edition, thresholds, anatomy, loss, log, live, to, max_overhead, …

    Whatever the cadence, the last step is measured too. Rows also go to the trainer's own loggers, under walkback/…
    """
    check_options(every, options)

    class WatchCallback(*_bases()):  # type: ignore[misc]
        watch: Watch

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            lengths = {"total_epochs": trainer.max_epochs, "total_steps": trainer.estimated_stepping_batches}
            planned = {name: int(n) for name, n in lengths.items() if n is not None and 0 < n < math.inf}

            def log(row: Row) -> None:
                for logger in trainer.loggers:
                    logger.log_metrics(scalars(row), step=trainer.global_step)

            how = {**planned, **options, "to": [*options.get("to", ()), log]}
            self.watch = Watch(part(pl_module, network), eval_batches, every, **how)
            self.watch.steps, self.watch.epochs = trainer.global_step, trainer.current_epoch
            self._metric, self._since, self._new = None, trainer.global_step, {}

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            if trainer.global_step > self.watch.steps:  # not while gradients are still being accumulated
                self.watch.step(trainer.global_step)
                self._maybe_stop(trainer)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            new = self._accuracy(trainer)
            if self.watch.epoch(trainer.current_epoch + 1, **new) is None:
                self.watch.amend(since=self._since, **new)
            self._since, self._new = trainer.global_step, new
            self._maybe_stop(trainer)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.watch.finish(**(self._new if self._since == trainer.global_step else {}))
            if accuracy is not None and self._metric is None:
                names = ", ".join(trainer.callback_metrics) or "nothing"
                warnings.warn(  # an error would cost a training that has ended well
                    f"Expected accuracy to name a logged metric, but {accuracy!r} is not among: {names}.", stacklevel=2
                )

        def _accuracy(self, trainer: Any) -> dict[str, float]:
            """The metric, if it was logged since it was last looked at: Lightning keeps old ones, object and all."""
            metric = None if accuracy is None else trainer.callback_metrics.get(accuracy)
            if metric is None or metric is self._metric:
                return {}
            self._metric = metric
            return {"acc": float(metric)}

        def _maybe_stop(self, trainer: Any) -> None:
            if stop and self.watch.should_stop:
                trainer.should_stop = True

    return WatchCallback()


def _bases() -> tuple[type, ...]:
    """`Callback` of the namespace in use. They are two packages with two classes; who loaded both gets both."""
    loaded = [name for name in _NAMESPACES if name in sys.modules]
    there = loaded or [name for name in _NAMESPACES if find_spec(name.partition(".")[0]) is not None][:1]
    return tuple(library(name, "lightning").Callback for name in there or _NAMESPACES[:1])
