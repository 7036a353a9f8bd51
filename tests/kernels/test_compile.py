"""Every kernel compiles for a GPU, whether or not there is one, spills little and fits any chip.

The interpreter accepts much that the compiler rejects; only compiling reveals it.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from kernels.table import KERNEL_OPS

SMALLEST_SHARED_BYTES = 101_376  # of a program, on the chips of 8.6 and 8.9


@pytest.fixture(scope="module")
def usages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = (sys.executable, "-m", "kernels.compile", "--capability", "90")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_every_op_is_compiled(usages: list[dict[str, Any]]) -> None:
    assert {usage["case"] for usage in usages} >= set(KERNEL_OPS)


def test_every_kernel_of_attention_is_compiled(usages: list[dict[str, Any]]) -> None:
    assert {usage["kernel"] for usage in usages} >= {
        "attend_kernel",
        "merge_splits_kernel",
        "merge_states_kernel",
        "store_kv_kernel",
    }


def test_no_register_is_spilled(usages: list[dict[str, Any]]) -> None:
    assert [usage for usage in usages if usage["stack_bytes"]] == []


def test_shared_memory_fits_any_chip(usages: list[dict[str, Any]]) -> None:
    assert [usage for usage in usages if usage["shared_bytes"] > SMALLEST_SHARED_BYTES] == []
