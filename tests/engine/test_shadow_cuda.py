"""Whole engines with every tensor on a shadow CUDA device give the CPU's tokens.

A part of what `make test-shadow` runs, here with Triton's kernels bound by name alone.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.shadow_cuda.suite.cases import BY_NAME, CASES, KINDS, ShadowCase
from tests.shadow_cuda.suite.engines import StepKind, StepRecord
from tests.shadow_cuda.suite.mutants import MUTANTS, Mutant, caught_by
from tests.shadow_cuda.suite.outcome import Bench, Outcome
from tests.shadow_cuda.suite.report import (
    MAX_LOGPROB_DIFF,
    MAX_WAITS,
    MIN_ENGINES,
    MIN_MUTANTS,
    Launches,
    Report,
    missed_waits,
)
from tests.shadow_cuda.waits import Wait

IN_UNIT_TESTS = [case for case in CASES if case.in_unit_tests]
UNIT_MUTANTS = [mutant for mutant in MUTANTS if mutant.in_unit_tests]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("shadow"))


@pytest.mark.parametrize("case", IN_UNIT_TESTS, ids=lambda case: case.name)
def test_an_engine_on_the_shadow_device_gives_the_cpus_tokens(
    bench: Bench, case: ShadowCase
) -> None:
    outcome = bench.outcome(case, "auto")
    assert outcome.violations == []
    assert outcome.logprob_diff <= MAX_LOGPROB_DIFF or case.dtype != "float32"
    assert missed_waits(outcome) == []
    assert set(MAX_WAITS) & {step.kind for step in outcome.steps}


@pytest.mark.parametrize("mutant", UNIT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(bench: Bench, mutant: Mutant) -> None:
    assert caught_by(mutant, bench)


def test_the_suite_has_what_it_promises() -> None:
    assert len(CASES) == len(BY_NAME) >= MIN_ENGINES
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MIN_MUTANTS
    assert {case.requests for case in CASES} == set(KINDS)
    assert {case.dtype for case in CASES} == {"float32", "bfloat16"}


# The report


def step(kind: StepKind, waits: int) -> StepRecord:
    blocking = tuple(Wait("aten::item", "engine.py", 7) for _ in range(waits))
    return StepRecord(kind, 2, 5, blocking, 1, ())


def report_of(outcome: Outcome) -> Report:
    launches = [Launches("launches_eagle3_b1", 7, Counter({"decode.py:3": 7}))]
    return Report([outcome], launches, {"a bug": "tokens", "another": ""})


def test_a_report_names_every_miss_with_its_place() -> None:
    outcome = Outcome(CASES[0], "auto", ["wrong tokens at engine.py:1"], logprob_diff=0.5)
    outcome.steps = [step(kind, most + 1) for kind, most in MAX_WAITS.items()]
    report = report_of(outcome)
    figures = report.figures()
    assert (figures["violations"], figures["mutants_caught"]) == (1, "1/2")
    assert (figures["waits_joining"], figures["launches_eagle3_b1"]) == (
        MAX_WAITS[StepKind.JOINING] + 1,
        7,
    )
    text = "\n".join(report.misses())
    assert "wrong tokens at engine.py:1" in text
    assert text.count("aten::item at engine.py:7") == len(MAX_WAITS)
    assert "mutant another survived" in text
    assert f"logprob_diff 0.5 at {Path('tests/shadow_cuda/suite/report.py').resolve()}" in text


def test_the_wait_for_a_result_is_no_miss() -> None:
    outcome = Outcome(CASES[0], "auto", steps=[step(StepKind.GREEDY, 0)])
    assert outcome.max_waits(StepKind.GREEDY) == 0
    assert missed_waits(outcome) == []
