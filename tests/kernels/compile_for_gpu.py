"""Compile every kernel down to machine code for an H100, on any machine.

The interpreter runs kernels that the compiler would refuse. Ops are called on the CPU with a launch
that compiles for the arguments at hand and runs nothing. Prints the kernels' names.
"""

import os

os.environ["TRITON_INTERPRET"] = "0"
os.environ["SPECDECODE_KERNELS"] = "triton"

import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).parent))
from every_op import calls

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.bool: "*i1",
}
OPTIONS = ("num_warps", "num_stages")


def type_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def compile_only(kernel: Any, *args: object, grid: object, warmup: bool, **kwargs: Any) -> None:
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    # Triton compiles a number 1 in, as it does what a kernel declares constant.
    declared = {p.name for p in kernel.params if p.is_constexpr}
    fixed = {
        name: v for name, v in bound.items() if name in declared or (type(v) is int and v == 1)
    }
    signature = {
        name: "constexpr" if name in fixed else type_of(bound[name]) for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, fixed)
    compiled = triton.compile(source, target=TARGET, options=options)
    assert compiled.asm["cubin"]
    print(kernel.__name__, compiled.metadata.shared, flush=True)
    folder = os.environ.get("PTX_FOLDER")
    if folder:
        Path(folder, f"{kernel.__name__}.ptx").write_text(compiled.asm["ptx"])


JITFunction.run = compile_only  # type: ignore[method-assign]
for call in calls(torch.device("cpu")).values():
    call()
