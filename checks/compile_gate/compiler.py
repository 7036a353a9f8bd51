"""Compiles cells without a GPU: the real launchers run on CPU tensors up to the launch.

What is compiled is thereby what a GPU of that capability would run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing import get_context

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction

from checks.compile_gate.cells import (
    DELTA,
    DEPENDENT,
    EXPERTS,
    KEEP,
    LINEAR,
    QUANTIZED_EXPERTS,
    ROUTERS,
    SAMPLED_VOCAB,
    SAMPLING,
    Cell,
    QuantizedCase,
)
from checks.compile_gate.usage import Usage, usage_of
from specdecode_kernels import (
    FLOAT8,
    TORCH,
    Backend,
    DeltaShape,
    KvScale,
    LayerKV,
    RowSplit,
    SamplingParamsBatch,
)
from specdecode_kernels.testing import (
    backend_of,
    call_experts,
    call_gated_delta,
    call_weight,
    calls,
    draw_case,
)
from specdecode_kernels.testing.gated_delta import DeltaForm
from specdecode_kernels.testing.op_calls import PARENTS
from specdecode_kernels.triton.backend import with_triton_attention
from specdecode_kernels.triton.dependent_launch import switch
from specdecode_kernels.triton.float8 import HOPPER
from specdecode_kernels.triton.merge_states import merge_splits

CPU = torch.device("cpu")


class _AbsentDevice:
    """Replaces Triton's driver of the current device, and names only what to compile for."""

    def __init__(self) -> None:
        self.capability = 0

    def get_current_device(self) -> int:
        # Kernels are kept by device, so each capability is another one.
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


class Compiler:
    """Compiles instead of launching, from its creation on, in the whole process."""

    def __init__(self) -> None:
        self._device = _AbsentDevice()
        self.compiled: list[CompiledKernel] = []
        self._kernel: str | None = None  # the only one that is compiled
        launch = JITFunction.run

        def compile_only(kernel: JITFunction, *args: object, **options: object) -> None:
            if self._kernel in (None, kernel.__name__):
                self.compiled.append(launch(kernel, *args, **options | {"warmup": True}))

        JITFunction.run = compile_only
        triton.runtime.driver.set_active(self._device)

    def compile(self, cell: Cell) -> list[Usage]:
        """Compile the kernels of a cell.

        Raises:
            Exception: any of Triton's or of ptxas; the cell does not compile.
        """
        self._device.capability = cell.capability
        self._kernel = "_attend_kernel" if cell.is_attention else None
        self.compiled.clear()
        _call(cell)
        return [usage_of(kernel) for kernel in self.compiled]


def compile_cells(
    cells: Iterable[Cell], processes: int
) -> Iterator[tuple[Cell, list[Usage], str | None]]:
    """Compile in other processes; yields each cell with its kernels, or with the error's line."""
    context = get_context("spawn")  # a fork would inherit torch's threads
    with context.Pool(processes, _start_worker) as pool:
        yield from pool.imap(_compile_in_worker, cells)


_worker: list[Compiler] = []


def _start_worker() -> None:
    torch.set_num_threads(1)
    _worker.append(Compiler())


def _compile_in_worker(cell: Cell) -> tuple[Cell, list[Usage], str | None]:
    try:
        return cell, _worker[0].compile(cell), None
    except Exception as error:  # of any kind: that it does not compile is the result
        return cell, [], " ".join(str(error).split())[:200] or type(error).__name__


def _call(cell: Cell) -> None:
    if cell.is_attention:
        _attend(cell)
    elif cell.op == "store_kv float8":
        _store_float8(backend_of("triton", CPU), is_turned=False)
    elif cell.op == "rope_and_store_kv float8":
        _store_float8(backend_of("triton", CPU), is_turned=True)
    elif cell.op == "add_rms_norm parts":
        rows, parts = torch.zeros(3, 96).bfloat16(), torch.zeros(4, 3, 96).bfloat16()
        backend_of("triton", CPU).add_rms_norm(rows, parts, rows[0], 1e-5)
    elif cell.op in EXPERTS:
        kind, dtype = EXPERTS[cell.op]
        call_experts(backend_of("triton", CPU), CPU, kind, dtype, has_bias=True)
    elif cell.op in ROUTERS:
        num_experts, config = ROUTERS[cell.op]
        logits, bias = torch.zeros(3, num_experts).bfloat16(), torch.zeros(num_experts)
        backend_of("triton", CPU).route_experts(logits, config, bias)
    elif cell.op in LINEAR:
        _linear(LINEAR[cell.op])
    elif cell.op in QUANTIZED_EXPERTS:
        _experts(QUANTIZED_EXPERTS[cell.op])
    elif cell.op in SAMPLING:
        _sample(backend_of("triton", CPU), SAMPLING[cell.op])
    elif cell.op in DELTA:
        shape, dtype, is_tree = DELTA[cell.op]
        parents = PARENTS if is_tree else None
        call_gated_delta(backend_of("triton", CPU), CPU, shape, dtype, parents)
    elif cell.op in KEEP:
        _keep_drafted(backend_of("triton", CPU), *DELTA[KEEP[cell.op]])
    elif cell.op in DEPENDENT:
        switch(is_on=True)
        try:
            calls(CPU)[DEPENDENT[cell.op]](backend_of("triton", CPU))
        finally:
            switch(is_on=False)
    elif cell.op == "merge_splits":
        parts = torch.empty(4, 2, 8, 128)
        merge_splits(parts, parts[..., 0].contiguous(), parts[0].bfloat16(), None)
    else:
        calls(CPU)[cell.op](backend_of("triton", CPU))


def _attend(cell: Cell) -> None:
    backend = with_triton_attention(
        TORCH,
        CPU,
        splits=1 if cell.forward.startswith("extend") else 4,
        workspace_bytes=1 << 24,
        converts_float8=divmod(cell.capability, 10) >= HOPPER,
    )
    draw_case(cell.shape(), 0).attend(backend)


def _linear(case: QuantizedCase) -> None:
    weight = replace(call_weight(CPU, case.precision), dtype=case.dtype)
    rows = torch.zeros(case.rows + case.block_rows, weight.shape[1], dtype=case.dtype)
    ops, order = backend_of("triton", CPU), torch.arange(len(rows))
    assert ops.row_paths is not None
    split = RowSplit(*order.tensor_split([case.rows])) if case.block_rows else None
    with ops.row_paths.split(split):
        ops.linear(rows, weight, None)


def _experts(case: QuantizedCase) -> None:
    ops, has_bias = backend_of("triton", CPU), case.kind != "silu"
    call_experts(ops, CPU, case.kind, case.dtype, has_bias=has_bias, precision=case.precision)


def _keep_drafted(backend: Backend, shape: DeltaShape, dtype: torch.dtype, is_tree: bool) -> None:
    form = DeltaForm(shape, dtype)
    slots, path = torch.tensor([2, 1]), torch.tensor([[0, 2, 5]] * 2)
    given = form.draw_params(0), form.draw_state(1), slots, path if is_tree else None
    backend.keep_drafted(*given, torch.tensor([2, 1]))


def _sample(backend: Backend, kind: tuple[bool, bool] | None) -> None:
    floats, integers = torch.zeros(3, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.int64)
    columns = floats[0], integers[0], floats[1], floats[2], integers[1]
    params = None if kind is None else SamplingParamsBatch(*columns, *kind)
    backend.sample(torch.zeros(1, 1, SAMPLED_VOCAB), params, integers[:1], None)


def _store_float8(backend: Backend, *, is_turned: bool) -> None:
    pool = torch.zeros(64, 8, 128).to(FLOAT8)
    new = torch.zeros(2, 8, 128, dtype=torch.bfloat16)
    kv = LayerKV(pool, pool.clone(), KvScale(0.5, 0.5))
    if is_turned:
        angles = torch.zeros(2, 64)
        backend.rope_and_store_kv(kv, torch.tensor([1, 2]), new, new, new, angles, angles)
    else:
        backend.store_kv(kv, torch.tensor([1, 2]), new, new)
