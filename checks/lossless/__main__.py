"""`python -m checks.lossless --cases 200 --seed 1`: every mismatch and, last, one line of JSON.

With `--tools` the cases are required calls in every format with every speculative algorithm.
"""

import argparse
import sys
from contextlib import nullcontext

import torch

from checks.lossless.adapted import FAULTS as ADAPTER_FAULTS
from checks.lossless.comparison import compare_all
from checks.lossless.published import FAULTS, PUBLISHED
from checks.lossless.ranks import run_on_ranks
from checks.lossless.tool_calls import compare_tool_calls
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_kernels.testing import mended_interpreter


def main() -> int:
    """Run the cases; 1 if any differs."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="lossless")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, help="1; of --tools a fresh one, which is printed")
    parser.add_argument("--only", type=int, help="run this case number alone")
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        help="float32; of --tools float32 and bfloat16",
    )
    parser.add_argument(
        "--attention-backend",
        choices=("auto", "torch", "triton"),
        default="auto",
        help="triton runs our kernels: on a CPU set TRITON_INTERPRET=1, minutes for each case",
    )
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8_e4m3"), default="auto")
    parser.add_argument(
        "--sum-order",
        choices=("inputs", "blocks32"),
        help="of --dtype bfloat16: this order in all cases; drawn where absent",
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument(
        "--quantization", choices=sorted(PUBLISHED), help="store all models in this form"
    )
    parser.add_argument(
        "--fault",
        choices=sorted((*FAULTS, *ADAPTER_FAULTS)),
        help="read the weights of speculative engines wrongly, with --quantization, or treat "
        "adapters wrongly, with --adapters; must be found",
    )
    parser.add_argument(
        "--adapters",
        action="store_true",
        help="LoRA adapters in every case, each family of models and draft in turn; without it in "
        "some cases",
    )
    parser.add_argument(
        "--tools",
        action="store_true",
        help="calls of random tools in every format with every algorithm; other flags than "
        "--seed, --dtype, --only, --minutes and --formats are ignored",
    )
    parser.add_argument(
        "--formats", nargs="+", choices=sorted(TOOL_FORMATS), help="of --tools: these alone"
    )
    parser.add_argument("--minutes", type=float, help="of --tools: start no case after so many")
    options = parser.parse_args()
    if options.fault in FAULTS and not options.quantization:
        parser.error(f"--fault {options.fault} needs --quantization")
    if options.fault in ADAPTER_FAULTS and not options.adapters:
        parser.error(f"--fault {options.fault} needs --adapters")
    if options.adapters and (
        options.attention_backend == "triton" or options.tensor_parallel_size > 1
    ):
        parser.error("--adapters needs one rank, and no Triton kernels")
    torch.set_num_threads(1)
    if options.tools:
        return compare_tool_calls(options)
    options.seed = 1 if options.seed is None else options.seed
    options.dtype = options.dtype or "float32"
    if options.tensor_parallel_size > 1:
        return run_on_ranks(options.tensor_parallel_size, options)
    is_interpreted = options.attention_backend == "triton" and not torch.cuda.is_available()
    with mended_interpreter() if is_interpreted else nullcontext():
        return compare_all(options)


if __name__ == "__main__":
    sys.exit(main())
