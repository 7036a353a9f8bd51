"""Dependent launches are off, refused where a device has none, and wait in every kernel."""

import os
import subprocess
import sys

import pytest
import torch

from checks.compile_gate.cells import DEPENDENT
from specdecode_kernels.triton.dependent_launch import (
    PDL_VARIABLE,
    launch_options,
    read_switch,
    switch,
)

COMPILE_BOTH = """
from checks.compile_gate.cells import DEPENDENT, Cell
from checks.compile_gate.compiler import Compiler
compiler = Compiler()
for dependent, op in DEPENDENT.items():
    for name in (op, dependent):
        compiler.compile(Cell(name, 90))
        print(name, *("griddepcontrol.wait" in one.asm["ptx"] for one in compiler.compiled))
"""


def test_they_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PDL_VARIABLE, raising=False)
    read_switch(torch.device("cpu"))
    assert launch_options() == {"PDL": False}


def test_a_switch_changes_the_launches_that_follow() -> None:
    switch(is_on=True)
    try:
        assert launch_options() == {"PDL": True, "launch_pdl": True}
    finally:
        switch(is_on=False)
    assert launch_options() == {"PDL": False}


@pytest.mark.parametrize(
    ("value", "message"), [("1", "needs a GPU of compute capability 9.0"), ("yes", "'yes'")]
)
def test_values_that_cannot_be_met_are_refused(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PDL_VARIABLE, value)
    with pytest.raises(ValueError, match=message):
        read_switch(torch.device("cpu"))


def test_a_dependent_kernel_waits_and_a_plain_one_does_not() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    ran = subprocess.run(
        (sys.executable, "-c", COMPILE_BOTH),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    wanted = [f"{name} {name in DEPENDENT}" for each in DEPENDENT.items() for name in each[::-1]]
    assert ran.stdout.splitlines() == wanted
