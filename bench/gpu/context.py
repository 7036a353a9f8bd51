"""What sections share: the device, the sizes, the floors, the engine that is built once."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from bench.gpu.engines import Engines
from bench.gpu.limits import Floors
from bench.gpu.record import CannotMeasure
from bench.gpu.scale import Scale
from bench.gpu.stopwatch import time_us


@dataclass(slots=True)
class Context:
    """One run."""

    device: torch.device
    is_dry: bool
    scale: Scale
    engines: Engines
    clock: Callable[[], float] = time.monotonic
    section_ends_s: float = float("inf")
    known_floors: Floors | None = field(default=None)

    @property
    def floors(self) -> Floors:
        """What the machine allows.

        Raises:
            CannotMeasure: the section that measures it has not been done.
        """
        if self.known_floors is None:
            raise CannotMeasure("the floors were not measured, and there is no limit without them")
        return self.known_floors

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether the section may run for so much longer."""
        return self.clock() + seconds < self.section_ends_s

    def time_us(self, call: Callable[[], object]) -> float:
        """Time one call in a graph."""
        return time_us(call, self.device, self.scale.repeats, self.scale.flushed_bytes)

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Give the engines' memory back."""
        self.engines.release()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
