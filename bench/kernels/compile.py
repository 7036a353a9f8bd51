"""`python -m kernels.compile --capability 90`: registers, shared memory and spills of each kernel.

Triton's compiler needs no GPU: the real launchers run on CPU tensors up to the launch, which is
left out. What is compiled is thereby what a GPU of that capability would run.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction

from specdecode_kernels import FLOAT8, TORCH, Backend, KvScale, LayerKV
from specdecode_kernels.testing import Shape, backend_of, calls, draw_case
from specdecode_kernels.triton.backend import with_triton_attention

CPU = torch.device("cpu")
ADA = 89


@dataclass(frozen=True, slots=True)
class Usage:
    """What one compiled kernel takes; `stack_bytes` beyond 0 are spilled registers."""

    case: str
    kernel: str
    capability: int
    registers: int
    stack_bytes: int
    shared_bytes: int


class _AbsentDevice:
    """Replaces Triton's driver of the current device, and names only what to compile for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def cases(capability: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """List a call of every op, and what takes every branch of attention, at an 8B model's sizes."""
    backend = backend_of("triton", CPU)
    for op, call in calls(CPU).items():
        yield op, partial(call, backend)
    yield from _attention_cases(capability)


def _attention_cases(capability: int) -> Iterator[tuple[str, Callable[[], object]]]:
    model = {"kv_heads": 8, "shared": 4, "dim": 128, "dtype": torch.bfloat16, "page_size": 16}
    verify, chain = {"qo_lens": (8, 8), "tree_rows": 8}, (1, 1)
    shapes = {
        "decode": (Shape(qo_lens=chain, **model), 4),
        "verify": (Shape(**verify, **model), 4),
        "verify, page 1": (Shape(**verify, **model | {"page_size": 1}), 1),
        "extend": (Shape(qo_lens=(1, 40), longest=50, **model), 1),
        "verify, dim 256, page 256": (Shape(**verify, **model | {"dim": 256, "page_size": 256}), 4),
        "verify, dim 80": (Shape(**verify, **model | {"dim": 80, "dtype": torch.float16}), 4),
        "verify, float32": (Shape(**verify, **model | {"dtype": torch.float32}), 4),
    }
    if capability >= ADA:
        shapes["verify, float8"] = (Shape(**verify, **model, pool_dtype=FLOAT8), 4)
    for name, (shape, splits) in shapes.items():
        backend = with_triton_attention(TORCH, CPU, splits=splits, workspace_bytes=1 << 24)
        case = draw_case(shape, 0)
        yield f"attend: {name}", lambda case=case, backend=backend: case.attend_with_lse(backend)
    for dtype in (torch.bfloat16, FLOAT8) if capability >= ADA else (torch.bfloat16,):
        pool = torch.zeros(64, 8, 128).to(dtype)
        yield f"store_kv: {dtype}", partial(store, pool, backend_of("triton", CPU))


def store(pool: torch.Tensor, backend: Backend) -> None:
    """Store two rows."""
    new = torch.zeros(2, 8, 128, dtype=torch.bfloat16)
    scale = KvScale(0.5, 0.5) if pool.dtype == FLOAT8 else KvScale()
    backend.store_kv(LayerKV(pool, pool.clone(), scale), torch.tensor([1, 2]), new, new)


def compile_cases(capability: int) -> Iterator[Usage]:
    """Run every case up to its launches."""
    compiled: list[CompiledKernel] = []
    original = JITFunction.run

    def run(self: JITFunction, *args: object, **options: object) -> None:
        compiled.append(original(self, *args, **options | {"warmup": True}))

    JITFunction.run = run
    triton.runtime.driver.set_active(_AbsentDevice(capability))
    for name, call in cases(capability):
        compiled.clear()
        call()
        for kernel in compiled:
            registers, stack_bytes = resources(kernel.asm["cubin"])
            yield Usage(
                name,
                kernel.metadata.name.strip("_"),
                capability,
                registers,
                stack_bytes,
                kernel.metadata.shared,
            )


def resources(cubin: bytes) -> tuple[int, int]:
    """Read registers per thread and bytes of stack out of a compiled kernel."""
    program = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = (program, "-res-usage", file.name)
        printed = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", printed.stdout + printed.stderr)
    if found is None:
        raise ValueError(f"{program} printed no registers: {printed.stdout}{printed.stderr}")
    return int(found[1]), int(found[2])


def main() -> int:
    """Print a line of JSON per kernel."""
    parser = argparse.ArgumentParser(prog="kernels.compile")
    parser.add_argument("--capability", type=int, default=90, help="90 is an H100's, 80 an A100's")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        print("TRITON_INTERPRET is set: nothing would be compiled; unset it", file=sys.stderr)
        return 2
    for usage in compile_cases(options.capability):
        print(json.dumps(asdict(usage)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
