"""The request trace: a real server traced; steps, names and record types."""

import dataclasses
import enum
from types import CodeType
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from checks.request_trace.__main__ import EAGLE3, summary, trace
from checks.request_trace.calls import STEP, is_ours, step_sizes
from checks.request_trace.records import is_record_type


def test_trace_of_a_served_completion_has_plausible_figures() -> None:
    found = trace(EAGLE3)
    figures = summary({"plain": found, "eagle3": found})
    counts = {"files": len(found["files"]), "functions": len(found["functions"])}
    assert figures["eagle3"] == counts | {"calls_per_step": found["calls_per_step"]}
    assert figures["record_types"] == len(found["record_types"])
    assert 20 < counts["files"] < counts["functions"] < 1000
    assert 100 < found["calls_per_step"] < 3000
    assert len(found["record_types"]) > 5
    assert any(name.startswith("specdecode_engine/serve/") for name in found["files"])
    assert any(name.startswith("specdecode_engine/speculate/") for name in found["files"])
    assert any(name.endswith(f": {STEP}") for name in found["functions"])


OURS = "/somewhere/src/specdecode_engine/engine.py"


def _compiled(source: str, file: str = OURS) -> CodeType:
    """Return the innermost code object of a definition."""
    code = compile(source, file, "exec")
    while inner := [const for const in code.co_consts if isinstance(const, CodeType)]:
        code = inner[0]
    return code


STEP_CODE = _compiled("class EngineCore:\n    def step(self): ...\n")
OTHER_CODE = _compiled("def other(): ...\n")


def test_step_sizes_leave_out_prefill_and_the_last_step() -> None:
    calls = [OTHER_CODE, STEP_CODE, *[OTHER_CODE] * 9, STEP_CODE, OTHER_CODE, STEP_CODE, OTHER_CODE]
    assert step_sizes(calls) == [2]


def test_step_sizes_name_the_remedy_when_no_step_is_found() -> None:
    with pytest.raises(ValueError, match=r"EngineCore\.step.*change STEP"):
        step_sizes([OTHER_CODE])


def test_lambdas_comprehensions_and_foreign_code_are_not_ours() -> None:
    assert is_ours(OTHER_CODE)
    assert not is_ours(_compiled("lambda: 1"))
    assert not is_ours(_compiled("[x for x in ()]"))
    assert not is_ours(_compiled("def other(): ...", "/elsewhere/torch/nn.py"))


@dataclasses.dataclass
class _Data:
    number: int


class _Pair(NamedTuple):
    left: int


class _Model(BaseModel):
    number: int


class _Slotted:
    __slots__ = ("number",)


class _Plain:
    pass


class _Colour(enum.Enum):
    RED = 1


def test_record_types_are_dataclasses_named_tuples_models_and_slotted_classes() -> None:
    assert [is_record_type(cls) for cls in (_Data, _Pair, _Model, _Slotted)] == [True] * 4
    assert [is_record_type(cls) for cls in (_Plain, _Colour, ValueError)] == [False] * 3
