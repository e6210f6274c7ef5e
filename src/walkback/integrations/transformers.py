"""Hugging Face `Trainer`: a Watch as a callback."""

from __future__ import annotations

import math
from typing import Any

from walkback.integrations.library import WatchCallback


class TransformersWatch(WatchCallback):
    """A `TrainerCallback` that watches the network; its `.watch` is the Watch once training has started.

    Args:
        eval_batches: as in `Watch`, or the `module:function` that returns them.
        every: as in `Watch`; steps are optimiser steps (`state.global_step`), whatever is accumulated.
        network: the dotted path of the network inside the model; by default the model itself.
        stop: end training when trust is lost.
        options: keywords of `Watch`: credit, edition, thresholds, anatomy, loss, log, live, to, max_overhead, …

    Epochs are those that were finished. Whatever the cadence, the last step is measured too, unless the Trainer has
    put the weights of its best checkpoint back before it could be. The Trainer's checkpoints hold the state of the
    watch: with `resume_from_checkpoint`, it goes on as training does.
    """

    base, extra = "TrainerCallback", "hf"

    @staticmethod
    def modules() -> tuple[str, ...]:
        return ("transformers",)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        planned: dict[str, int] = {"total_steps": state.max_steps}
        if args.max_steps <= 0:  # else the number of epochs is only a bound
            planned["total_epochs"] = math.ceil(state.num_train_epochs)
        self._state = self._state or _stored_states(state).get(self.state_key, {})
        self._begin(model, state.global_step, _finished(state.epoch or 0.0), {**planned, **self.options})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch.step(state.global_step)
        self._after(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count an epoch, and measure the last step, since the best checkpoint may be loaded before on_train_end."""
        self.watch.epoch(_finished(state.epoch))
        if control.should_training_stop:
            self.watch.finish()
        self._after(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the last step, if the weights are still those."""
        if not (args.load_best_model_at_end and state.best_model_checkpoint):
            self.watch.finish()

    def _after(self, state: Any, control: Any) -> None:
        _stored_states(state)[self.state_key] = self.state_dict()  # a checkpoint may be saved next
        if self.stop and self.watch.should_stop:
            control.should_training_stop = True


def _stored_states(state: Any) -> dict[str, Any]:
    """Return what the Trainer saves with its own state, by name; versions that save nothing get a dict to forget."""
    kept = getattr(state, "stateful_callbacks", None)
    return kept if isinstance(kept, dict) else {}


def _finished(epoch: float) -> int:
    """Return the whole epochs in the Trainer's count, which is a sum of fractions."""
    return math.floor(epoch + 1e-6)


trainer_callback = TransformersWatch
