"""What stands in for torch.cuda: streams, events, graphs, memory and properties of the device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.graph import GraphPool, GraphRecord
from tests.shadow_cuda.tensor import DEVICE

NAME = "shadow CUDA device"
PROCESSORS = 132


def replacements(device: ShadowDevice, capability: tuple[int, int]) -> dict[str, Any]:
    """Attributes of torch.cuda by name."""
    streams = _Streams(device)

    class Stream(ShadowStream):
        def __init__(self, where: Any = None, priority: int = 0) -> None:
            super().__init__(streams)

    class Event(ShadowEvent):
        def __init__(self, enable_timing: bool = False, **options: Any) -> None:
            super().__init__(device, enable_timing)

    class CUDAGraph(ShadowGraph):
        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__(device)

    properties = SimpleNamespace(
        name=NAME,
        major=capability[0],
        minor=capability[1],
        total_memory=device.memory.total_bytes,
        multi_processor_count=PROCESSORS,
    )
    return {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": streams.graph,
        "graph_pool_handle": GraphPool,
        "stream": streams.use,
        "current_stream": lambda where=None: streams.current,
        "default_stream": lambda where=None: streams.default,
        "is_current_stream_capturing": lambda: device.capture is not None,
        "synchronize": lambda where=None: streams.synchronize("torch.cuda.synchronize"),
        "is_available": lambda: True,
        "set_sync_debug_mode": lambda mode: setattr(device, "sync_debug_mode", mode),
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: DEVICE.index,
        "set_device": lambda where: None,
        "device": lambda where: _nothing(),
        "get_device_name": lambda where=None: NAME,
        "get_device_capability": lambda where=None: capability,
        "get_device_properties": lambda where=None: properties,
        "mem_get_info": lambda where=None: (
            device.memory.total_bytes - device.memory.used_bytes(),
            device.memory.total_bytes,
        ),
        "memory_allocated": lambda where=None: device.memory.used_bytes(),
        "memory_reserved": lambda where=None: device.memory.used_bytes(),
        "empty_cache": device.empty_cache,
    }


@contextmanager
def _nothing() -> Iterator[None]:
    yield


class ShadowStream:
    """A stream; all streams run in the order in which the host gives commands."""

    def __init__(self, streams: "_Streams") -> None:
        self._streams = streams
        self.device = DEVICE

    def synchronize(self) -> None:
        self._streams.synchronize("Stream.synchronize")

    def wait_stream(self, other: "ShadowStream") -> None:
        pass

    def wait_event(self, event: "ShadowEvent") -> None:
        pass

    def record_event(self, event: "ShadowEvent | None" = None) -> "ShadowEvent":
        event = event or ShadowEvent(self._streams.device)
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> "ShadowStream":
        self._streams.stack.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._streams.stack.pop()


class _Streams:
    """The default stream and the ones in use."""

    def __init__(self, device: ShadowDevice) -> None:
        self.device = device
        self.default = ShadowStream(self)
        self.stack = [self.default]

    @property
    def current(self) -> ShadowStream:
        return self.stack[-1]

    def synchronize(self, what: str) -> None:
        self.device.wait(what)
        self.device.host.arrive(self.device.host.ticket)

    @contextmanager
    def use(self, stream: ShadowStream | None) -> Iterator[None]:
        with stream or self.current:
            yield

    @contextmanager
    def graph(
        self,
        graph: "ShadowGraph",
        pool: GraphPool | None = None,
        stream: ShadowStream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        self.synchronize("torch.cuda.graph")
        with self.use(stream):
            graph.capture_begin(pool, capture_error_mode)
            try:
                yield
            finally:
                graph.capture_end()


class ShadowEvent:
    """An event: what was copied to the host before it is there once it has been waited for."""

    def __init__(self, device: ShadowDevice, enable_timing: bool = False) -> None:
        self._device = device
        self._has_time = enable_timing
        self._ticket: int | None = None
        self._recorded_s = 0.0
        self._was_queried = False

    def record(self, stream: ShadowStream | None = None) -> None:
        self._ticket = self._device.host.ticket
        self._recorded_s = time.perf_counter()
        self._was_queried = False

    def synchronize(self) -> None:
        self._device.refuse_in_capture("Event.synchronize")
        self._device.failures.on_wait()
        if self._ticket is not None:
            self._device.wait_for_event()
            self._device.host.arrive(self._ticket)

    def query(self) -> bool:
        """Whether the event was reached: by a later wait, or when asked again outside a stall."""
        self._device.failures.check()
        if self._ticket is None or self._ticket <= self._device.host.arrived:
            return True
        if self._device.failures.is_stalled:
            return False
        self._was_queried, was_queried = True, self._was_queried
        if was_queried:
            self._device.host.arrive(self._ticket)
        return was_queried

    def wait(self, stream: ShadowStream | None = None) -> None:
        pass

    def elapsed_time(self, later: "ShadowEvent") -> float:
        """Milliseconds on the host's clock."""
        if not (self._has_time and later._has_time):
            raise RuntimeError("both events must be created with enable_timing=True")
        if self._ticket is None or later._ticket is None:
            raise RuntimeError("both events must be recorded")
        return (later._recorded_s - self._recorded_s) * 1000


class ShadowGraph:
    """A CUDA graph; see `tests.shadow_cuda.graph`."""

    def __init__(self, device: ShadowDevice) -> None:
        self._device = device
        self._record: GraphRecord | None = None

    def capture_begin(
        self, pool: GraphPool | None = None, capture_error_mode: str = "global"
    ) -> None:
        self._device.begin_capture(pool or GraphPool())

    def capture_end(self) -> None:
        self._record = self._device.end_capture()

    def replay(self) -> None:
        if self._record is None:
            raise RuntimeError("this graph was not captured")
        self._device.replay(self._record)

    @property
    def allocations(self) -> int:
        """How often the capture allocated memory of the graph's pool."""
        return 0 if self._record is None else len(self._record.allocated)

    def pool(self) -> GraphPool:
        if self._record is None:
            raise RuntimeError("this graph was not captured")
        return self._record.pool

    def reset(self) -> None:
        self._record = None
