"""The shadow device: its memory, its copies to and from the host, its waits and its captures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from tests.shadow_cuda.device_memory import DeviceMemory
from tests.shadow_cuda.errors import CaptureRefused
from tests.shadow_cuda.failures import Failures
from tests.shadow_cuda.graph import Capture, GraphPool, GraphRecord
from tests.shadow_cuda.host_memory import HostMemory, WeakView
from tests.shadow_cuda.plain_torch import plain_torch
from tests.shadow_cuda.poison import poison
from tests.shadow_cuda.tensor import (
    ShadowTensor,
    contents,
    map_tensors,
    tensors_in,
    tensors_of_call,
)
from tests.shadow_cuda.waits import Wait

GIB = 1 << 30

_aten = torch.ops.aten
EMPTY = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
}
"""What allocates and writes nothing."""


class ShadowDevice:
    """State of one shadow device; computes on CPU tensors what it is given.

    `waits` lists blocking copies and reads in order; `event_waits` counts waits for events, where
    several without a launch between them are one; `captures` and `replays` count graphs. `launches`
    counts kernels, copies and replays outside captures: what only makes a view, allocates, or has
    no elements launches nothing, and an operation counts 1 although a library may launch several
    kernels for it. `launch_log`, if it is a list, receives the place of each. `compiled` names the
    variants of Triton kernels. `errors` keeps what was raised as a GPU would have failed, also
    where the caller caught it, without what a test requested from `failures`.
    """

    def __init__(self, total_bytes: int = 2 * GIB) -> None:
        self.failures = Failures()
        self.memory = DeviceMemory(total_bytes, self.failures)
        self.host = HostMemory()
        self.waits: list[Wait] = []
        self.sync_debug_mode: str | int = "default"
        self.event_waits = 0
        self._commands_at_event: tuple[int, int] | None = None
        self.captures = 0
        self.replays = 0
        self.launches = 0
        self.launch_log: list[Wait] | None = None
        self.triton_launches = 0  # in captures too
        self.compiled: list[str] = []
        self.errors: list[str] = []
        self.capture: Capture | None = None
        self.pool_in_use: GraphPool | None = None

    def wait(self, what: str) -> None:
        """Count a wait.

        Raises:
            CaptureRefused: a graph is being captured.
            RuntimeError: the debug mode of torch for waits is "error".
        """
        self.refuse_in_capture(what)
        self.waits.append(Wait.here(what))
        if self.sync_debug_mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation: {self.waits[-1]}")
        self.failures.on_wait()

    def refuse_in_capture(self, what: str) -> None:
        """Raise `CaptureRefused` if a graph is being captured, which makes the capture void."""
        if self.capture is not None:
            self.capture.refusal = f"operation not permitted when stream is capturing: {what}"
            self.fail(CaptureRefused(f"{self.capture.refusal} ({Wait.here(what)})"))

    def fail(self, error: Exception) -> NoReturn:
        """Keep and raise an error."""
        self.errors.append(str(error))
        raise error

    def wait_for_event(self) -> None:
        """Count a wait for an event; two without a launch between them last as long as one."""
        commands = (self.launches, self.host.ticket)
        self.event_waits += commands != self._commands_at_event
        self._commands_at_event = commands

    def launch(self) -> None:
        """Count a kernel, a copy or a replay; one within a capture is part of the graph.

        Raises:
            torch.AcceleratorError: a test asked for it; the error is sticky.
        """
        self.failures.on_launch()
        if self.capture is None:
            self.launches += 1
            if self.launch_log is not None:
                self.launch_log.append(Wait.here("launch"))

    @contextmanager
    def counting(self) -> Iterator[list[Wait]]:
        """Collect the waits of the body."""
        found: list[Wait] = []
        first = len(self.waits)
        try:
            yield found
        finally:
            found += self.waits[first:]

    @plain_torch()
    def create(self, make: Callable[[], Tensor], *, is_filled: bool = True) -> ShadowTensor:
        """Allocate what `make` returns on the CPU; what is not filled is poison."""
        content = make()
        self.memory.allocate(content)
        if not is_filled:
            poison(content)
        elif content.numel():
            self.launch()
        if self.capture is not None:
            self.capture.allocated(content)
            if is_filled:
                self.capture.add(lambda: (make(),), (content,))
        return ShadowTensor(content)

    def upload(self, source: Tensor, *, non_blocking: bool, what: str) -> ShadowTensor:
        """Copy a CPU tensor to new memory of the device."""
        made = self.create(lambda: torch.empty_like(source), is_filled=False)
        self.copy_in(made, source, non_blocking=non_blocking, what=what)
        return made

    @plain_torch()
    def copy_in(
        self, target: ShadowTensor, source: Tensor, *, non_blocking: bool, what: str
    ) -> None:
        """Copy a CPU tensor into a tensor of the device; only from pinned memory without a wait."""
        if source.numel():
            self.launch()
        if not non_blocking or not self.host.is_pinned(source):
            self.wait(what)
            target.content.copy_(source)
            return
        if self.capture is None:
            self.host.upload(source)
            target.content.copy_(source)
            return
        weak, content = WeakView(source), target.content
        self.capture.before_write(content)
        self.capture.add(lambda: (content.copy_(weak.tensor()),), ())

    @plain_torch()
    def copy_out(
        self, target: Tensor, source: ShadowTensor, *, non_blocking: bool, what: str
    ) -> None:
        """Copy a tensor of the device into a CPU tensor; only to pinned memory without a wait."""
        if source.numel():
            self.launch()
        if not non_blocking or not self.host.is_pinned(target):
            self.wait(what)
            target.copy_(source.content)
            return
        if self.capture is None:
            self.host.download(target, source.content)
            return
        weak, content = WeakView(target), source.content

        def run() -> tuple[Tensor, ...]:
            self.host.download(weak.tensor(), content)
            return ()

        self.capture.add(run, ())

    def download(self, source: ShadowTensor, dtype: torch.dtype, *, non_blocking: bool) -> Tensor:
        """Copy a tensor of the device to new host memory, pinned where the host does not wait."""
        target = torch.empty_like(source.content, dtype=dtype)
        if non_blocking:
            self.host.pin(target)
        self.copy_out(target, source, non_blocking=non_blocking, what="copy to the CPU")
        return target

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on the contents of its arguments; what comes back is wrapped."""
        is_new = allocates(func)
        if not is_new and func._schema.is_mutable and any_elements(written_by(func, args, kwargs)):
            self.launch()
        if self.capture is not None:
            # A scalar on the CPU is read now; a graph keeps its value.
            args, kwargs = map_tensors(args, _scalar_kept), map_tensors(kwargs, _scalar_kept)
            for written in written_by(func, args, kwargs):
                self.capture.before_write(written)
        plain_args = contents(args)
        plain_kwargs = dict(zip(kwargs, contents(kwargs.values()), strict=True)) if kwargs else {}
        result = func(*plain_args, **plain_kwargs)
        if is_new:
            self._keep(func, plain_args, plain_kwargs, tensors_in((result,)))
        elif func._schema.is_mutable:
            if self.capture is not None:
                self.capture.add(lambda: (func(*plain_args, **plain_kwargs),), ())
            given = [one for one in tensors_of_call(args, kwargs) if isinstance(one, ShadowTensor)]
            by_content = {id(one.content): one for one in given}
            return map_tensors(result, lambda one: by_content[id(one)])
        return ShadowTensor(result) if type(result) is Tensor else map_tensors(result, ShadowTensor)

    def _keep(self, func: Any, args: Any, kwargs: Any, results: list[Tensor]) -> None:
        """Account for new memory and record the operation where a graph is captured."""
        is_filled = func not in EMPTY
        for one in results:
            self.memory.allocate(one)
            if not is_filled:
                poison(one)
        if is_filled and any_elements(results):
            self.launch()
        if self.capture is not None:
            for one in results:
                self.capture.allocated(one)
            if is_filled:
                self.capture.add(lambda: tensors_in((func(*args, **kwargs),)), tuple(results))

    def begin_capture(self, pool: GraphPool) -> None:
        """Record from now on."""
        if self.capture is not None:
            raise RuntimeError("a CUDA graph is already being captured")
        self.captures += 1
        self.capture = Capture(pool)
        self.pool_in_use = pool

    @plain_torch()
    def end_capture(self) -> GraphRecord:
        """Stop recording; see `Capture.end`. A failure leaves the pool in use, as in torch 2.11."""
        if self.capture is None:
            raise RuntimeError("no CUDA graph is being captured")
        capture, self.capture = self.capture, None
        record = capture.end()
        self.pool_in_use = None
        return record

    def end_allocate(self, index: int, pool: GraphPool) -> None:
        """Stop allocating from a graph's pool."""
        if self.pool_in_use is not pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pool_in_use = None

    def empty_cache(self) -> None:
        """Do nothing, but as the allocator does, fail while a pool is in use."""
        if self.pool_in_use is not None:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    @plain_torch()
    def replay(self, record: GraphRecord) -> None:
        """Run a graph."""
        self.refuse_in_capture("replay of a graph")
        self.launch()
        self.replays += 1
        record.replay()


def any_elements(tensors: list[Tensor]) -> bool:
    """Whether an operation with these results launches a kernel: not for elements that are none."""
    return not tensors or any(one.numel() for one in tensors)


@cache
def allocates(func: Any) -> bool:
    """Whether results lie in new memory: not in that of an argument, seen otherwise or written."""
    if func is _aten._unsafe_view.default:
        return False
    return not any(one.alias_info for one in func._schema.returns)


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Contents of the tensors that an operation writes."""
    found = []
    for place, name in _written_places(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        found += [one.content for one in tensors_in((value,)) if isinstance(one, ShadowTensor)]
    return found


@cache
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple(
        (place, one.name)
        for place, one in arguments
        if one.alias_info is not None and one.alias_info.is_write
    )


def _scalar_kept(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, ShadowTensor) else tensor.clone()
