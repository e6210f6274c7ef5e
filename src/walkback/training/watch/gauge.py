"""What a watch measures with: the network, its probe batches on its device, and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from walkback.api import measure
from walkback.measures.measurements import Measurements
from walkback.network.values import buffers_of, parameters_of
from walkback.progress import quietly


class Gauge:
    """Measures one network on one probe set, and tells the time.

    Args:
        model: the network.
        batches: (inputs, labels) pairs, on any device.
        options: those of `measure`.
        clock: returns seconds.
    """

    def __init__(
        self, model: nn.Module, batches: Iterable[Any], options: Mapping[str, Any], clock: Callable[[], float]
    ) -> None:
        # An iterator would be used up by the first measurement.
        self.batches = list(batches) if isinstance(batches, Iterator) else batches
        self.model, self.options, self.clock = model, options, clock

    def measured(self) -> Measurements:
        """Measure on all batches."""
        return self._measured(self._moved())

    def first(self, times: int) -> tuple[float, float, list[list[int]]]:
        """Measure on one batch, so often; return all seconds, those of the last time, and the states' shape by site."""
        ends, shapes = [self.now()], []
        for _ in range(times):
            batch = next(iter(self._moved()), None)
            shapes = self._measured([] if batch is None else [batch]).conditions["state_shapes"]
            ends.append(self.now())
        return ends[-1] - ends[0], ends[-1] - ends[-2], shapes

    def now(self) -> float:
        """Return the time when everything that was asked of the device is done."""
        device = self._device.type
        if device != "cpu":
            getattr(torch, device).synchronize()
        return self.clock()

    def _measured(self, batches: Iterable[Any]) -> Measurements:
        with quietly():
            return measure(self.model, batches, **self.options)

    def _moved(self) -> Iterator[Any]:
        """Yield the batches, on the model's device."""
        for batch in self.batches:
            yield moved(batch, self._device)

    @property
    def _device(self) -> torch.device:
        """Where the model is now; it may have been moved since the watch was made."""
        return next((t.device for t in (*parameters_of(self.model), *buffers_of(self.model))), torch.device("cpu"))


def moved(value: Any, device: torch.device) -> Any:
    """Return a batch with all its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {k: moved(v, device) for k, v in value.items()}
    return type(value)(moved(v, device) for v in value) if type(value) in (tuple, list) else value
