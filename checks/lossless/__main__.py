"""`python -m checks.lossless --cases 200 --seed 1`: every mismatch and, last, one line of JSON."""

import argparse
import sys
from contextlib import nullcontext

import torch

from checks.lossless.comparison import compare_all
from checks.lossless.ranks import run_on_ranks
from specdecode_kernels.testing import mended_interpreter


def main() -> int:
    """Run the cases; 1 if any differs."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="lossless")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this case number alone")
    parser.add_argument("--dtype", choices=("float64", "float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--attention-backend",
        choices=("auto", "torch", "triton"),
        default="auto",
        help="triton runs our kernels: on a CPU set TRITON_INTERPRET=1, minutes for each case",
    )
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8_e4m3"), default="auto")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.tensor_parallel_size > 1:
        return run_on_ranks(options.tensor_parallel_size, options)
    is_interpreted = options.attention_backend == "triton" and not torch.cuda.is_available()
    with mended_interpreter() if is_interpreted else nullcontext():
        return compare_all(options)


if __name__ == "__main__":
    sys.exit(main())
