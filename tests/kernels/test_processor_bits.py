"""Kernels in C give the same bits with vectors of any width, and however maps are tuned.

`test_cpu_library` runs this with the kernels of a smaller x86-64 level, `make test-arm64` with
those of two ARM processors: the other side are always the kernels of the processor at hand.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdecode_kernels.cpu.loading import load_library
from specdecode_kernels.cpu.tuning import Tuning
from tests.kernels.processor_bits import TYPES, digests

TUNINGS = 6


def digests_of_this_processor() -> dict[str, str]:
    """Digest in a process whose kernels are compiled for all that the processor has."""
    others = ("CC", "SPECDECODE_CACHE")
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.processor_bits"],
        env={name: value for name, value in os.environ.items() if name not in others},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_kernel_gives_the_bits_of_this_processor() -> None:
    assert digests() == digests_of_this_processor()


@pytest.mark.parametrize("seed", range(TUNINGS))
def test_bits_do_not_depend_on_the_tuning(seed: int) -> None:
    libraries = [load_library(dtype) for dtype in TYPES]
    wanted, before = _linear_digests(), [library.tuning for library in libraries]
    rng = random.Random(seed)
    try:
        for library in libraries:
            library.use(Tuning.draw(rng))
        assert _linear_digests() == wanted
    finally:
        for library, tuning in zip(libraries, before, strict=True):
            library.use(tuning)


def _linear_digests() -> dict[str, str]:
    return {name: one for name, one in digests().items() if name[:6] in ("linear", "expert")}


def test_results_are_compared_in_every_type() -> None:
    names = digests().keys()
    assert {name.split()[-1] for name in names} == {str(dtype) for dtype in TYPES}
    assert torch.bfloat16 in TYPES
