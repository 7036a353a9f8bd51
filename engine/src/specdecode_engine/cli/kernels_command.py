"""`specdecode-engine kernels`: lists the Triton kernels that an engine would launch."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from specdecode_api.command_line import ArgumentParser
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.process import ConfigurationError

BAD_INPUT = 2
CAPABILITIES = (80, 86, 89, 90, 100, 120)


def list_kernels(arguments: Sequence[str]) -> int:
    """Print every variant that is compiled at start; 2 for bad input."""
    options, others = _parser().parse_known_args(arguments)
    # Imported here: torch takes seconds.
    from specdecode_engine.model.checkpoint.config_file import CheckpointError

    try:
        _refuse_interpreter()
        _print(options, [*_model_flags(options), *others])
    except (ConfigurationError, CheckpointError, ValueError) as error:
        print(f"specdecode-engine kernels: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-engine kernels",
        description="List the variants of Triton kernels that an engine compiles before it is "
        "ready. No GPU and no weights are needed. The flags of specdecode-engine apply, such as "
        "--page-size, --dtype, --kv-cache-dtype or --speculative-num-steps.",
    )
    parser.add_argument("--list", action="store_true", required=True, help="List the variants.")
    parser.add_argument("model", metavar="MODEL", help="Folder with the target's config.json.")
    parser.add_argument(
        "draft", metavar="DRAFT", nargs="?", help="Folder with the draft's config.json."
    )
    parser.add_argument(
        "--capability",
        type=int,
        choices=CAPABILITIES,
        default=90,
        help="Compute capability of the GPU, times ten (default 90).",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def _refuse_interpreter() -> None:
    if find_spec("triton") is None:
        raise ConfigurationError("triton is not installed; it comes with torch on Linux x86-64")
    from specdecode_kernels.triton.tiles import is_interpreted

    if is_interpreted():
        raise ConfigurationError(
            "TRITON_INTERPRET is set, so that nothing would be compiled; unset it"
        )


def _model_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags of the models; the draft's config.json decides the algorithm."""
    flags = ["--model-path", options.model]
    if options.draft is not None:
        from specdecode_engine.startup.draft_methods.registry import algorithm_of

        flags += ["--speculative-draft-model-path", options.draft]
        flags += ["--speculative-algorithm", algorithm_of(Path(options.draft))]
    return flags


def _print(options: argparse.Namespace, flags: list[str]) -> None:
    from specdecode_engine.startup.draft_methods.registry import METHODS
    from specdecode_engine.startup.kernel_calls import op_calls
    from specdecode_engine.startup.kernels import needs_of_boot
    from specdecode_kernels.triton.variants import list_variants

    boot = parse_flags(flags)
    calls = op_calls(needs_of_boot(boot), options.capability, METHODS[boot.speculation.algorithm])
    variants = sorted(
        list_variants(calls, options.capability),
        key=lambda one: (one.kernel, one.signature),
    )
    counts = Counter(one.kernel for one in variants)
    if options.json:
        rows = [
            {"kernel": one.kernel, "signature": one.signature, "reasons": one.reasons}
            for one in variants
        ]
        print(json.dumps({"total": len(variants), "kernels": counts, "variants": rows}, indent=1))
        return
    for one in variants:
        print(f"{one.kernel}({one.signature})\n    for {', '.join(one.reasons)}")
    for kernel, count in sorted(counts.items()):
        print(f"{count:4} {kernel}")
    print(f"{len(variants):4} in all, on compute capability {options.capability / 10}")
