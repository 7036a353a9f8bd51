"""Compiles FlashInfer's kernels ahead of time into its package, where it looks for them first.

    FLASHINFER_CUDA_ARCH_LIST="8.0 9.0 10.0 12.0" python -m specdecode_kernels.precompile_flashinfer

Needs no GPU, but nvcc and a C++ compiler: the extra specdecode-engine[gpu], and CUDA_HOME. What is
not compiled here is compiled at the first start on a GPU, in minutes. Written against
flashinfer-python 0.6.13: `gen_batch_prefill_module` and `JitSpec`.
"""

import argparse
import shutil
import sys
import time

import torch

DIMS = (64, 128)


def main(arguments: list[str] | None = None) -> int:
    """Compile one module per head dim, for bfloat16 queries and cache, and load each."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="precompile_flashinfer", description=main.__doc__
    )
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS, help="head dims")
    parser.add_argument("--sliding-window", action="store_true", help="for layers with a window")
    parser.add_argument("--logit-softcap", action="store_true", help="for layers with a softcap")
    options = parser.parse_args(arguments)
    for dim in options.dims:
        started_s = time.monotonic()
        num_bytes = precompile(dim, options.sliding_window, options.logit_softcap)
        took_s = time.monotonic() - started_s
        print(f"head dim {dim}: {num_bytes / 2**20:.1f} MiB in {took_s:.0f} s", flush=True)
    return 0


def precompile(dim: int, has_window: bool, has_softcap: bool) -> int:
    """Compile the module that `flashinfer` plans and runs, and load it; return its bytes."""
    from flashinfer.jit.attention.modules import gen_batch_prefill_module
    from flashinfer.utils import PosEncodingMode

    half, no_positions = torch.bfloat16, PosEncodingMode["NONE"].value
    options = (no_positions, has_window, has_softcap, False)  # sums in float32
    spec = gen_batch_prefill_module("fa2", half, half, half, torch.int32, dim, dim, *options)
    spec.build(verbose=False)
    spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(spec.jit_library_path, spec.aot_path)
    shutil.rmtree(spec.build_dir)
    spec.load(spec.aot_path)
    return int(spec.aot_path.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
