"""Hugging Face `Trainer`: a Watch as a callback."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from walkback.integrations.library import library, part
from walkback.training.watch import Watch, check_options


def trainer_callback(
    eval_batches: Iterable[Any],
    every: str | int = "epoch",
    *,
    network: str | None = None,
    stop: bool = False,
    **options: Any,
) -> Any:
    """A `TrainerCallback` that watches the network; its `.watch` is the Watch once training has started.

    Args:
        eval_batches: as in `Watch`.
        every: as in `Watch`; steps are optimiser steps (`state.global_step`), whatever is accumulated.
        network: the dotted path of the network inside the model; by default the model itself.
        stop: end training when trust is lost.
        options: keywords of `Watch`: credit, edition, thresholds, anatomy, loss, log, live, to, max_overhead, …

    Epochs are those that were finished. Whatever the cadence, the last step is measured too, unless the Trainer has
    put the weights of its best checkpoint back before it could be.
    """
    check_options(every, options)

    class WatchCallback(library("transformers", "hf").TrainerCallback):
        watch: Watch

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            planned: dict[str, int] = {"total_steps": state.max_steps}
            if args.max_steps <= 0:  # else the number of epochs is only a bound
                planned["total_epochs"] = math.ceil(state.num_train_epochs)
            self.watch = Watch(part(model, network), eval_batches, every, **{**planned, **options})
            self.watch.steps, self.watch.epochs = state.global_step, _finished(state.epoch or 0.0)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.watch.step(state.global_step)
            self._maybe_stop(control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.watch.epoch(_finished(state.epoch))
            if control.should_training_stop:  # here, since the best checkpoint may be loaded before on_train_end
                self.watch.finish()
            self._maybe_stop(control)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not (args.load_best_model_at_end and state.best_model_checkpoint):
                self.watch.finish()

        def _maybe_stop(self, control: Any) -> None:
            if stop and self.watch.should_stop:
                control.should_training_stop = True

    return WatchCallback()


def _finished(epoch: float) -> int:
    """Whole epochs in the Trainer's count, which is a sum of fractions."""
    return math.floor(epoch + 1e-6)
