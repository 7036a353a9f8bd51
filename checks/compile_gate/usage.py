"""What a compiled kernel takes, read from its machine code and from the compiler's stages."""

import re
import subprocess
import tempfile
from dataclasses import dataclass

import triton
from triton.compiler import CompiledKernel

MULTIPLIES = ("wgmma", "tcgen05.mma", "mma.sync")
BUFFERED = re.compile(r"local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x(?!i64)\w+")
ASYNC_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global [^;]*?, 0x([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Usage:
    """Registers of a thread, bytes of a thread's stack (spilled registers) and of shared memory.

    Of products also: how many tiles of keys and of values, or of weights, shared memory holds at
    once; bytes of the narrowest asynchronous copy, 0 without any; the instruction that multiplies.
    """

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    kv_buffers: int
    copy_bytes: int
    multiply: str


def usage_of(kernel: CompiledKernel) -> Usage:
    """Read the usage of a kernel that was compiled and not launched."""
    registers, stack_bytes = _resources(kernel.asm["cubin"])
    ptx = kernel.asm["ptx"]
    buffers = [int(count) for count in BUFFERED.findall(kernel.asm["ttgir"])]
    copies = [int(size, 16) for size in ASYNC_COPY.findall(ptx)]
    return Usage(
        kernel.metadata.name.strip("_"),
        registers,
        stack_bytes,
        kernel.metadata.shared,
        kv_buffers=min(buffers, default=1),
        copy_bytes=min(copies, default=0),
        multiply=next((name for name in MULTIPLIES if name in ptx), "-"),
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Read registers per thread and bytes of stack out of machine code."""
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
