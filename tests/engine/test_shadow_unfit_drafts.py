"""A draft that is unfit adds no launch to an ordinary step, on the shadow CUDA device."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.suite.cases import ShadowCase
from tests.shadow_cuda.suite.engines import (
    StepKind,
    StepRecord,
    build,
    drive,
    make_requests,
)
from tests.shadow_cuda.suite.outcome import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("shadow"))


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda(2 << 30) as device:
        yield device


def launches(steps: list[StepRecord]) -> dict[tuple[StepKind, int], set[int]]:
    """Launches of the steps that only decode, by kind and batch size."""
    found: dict[tuple[StepKind, int], set[int]] = {}
    for step in steps:
        if step.kind is StepKind.GREEDY:
            found.setdefault((step.kind, step.batch_size), set()).add(step.launches)
    return found


def steady_steps(bench: Bench, case: ShadowCase, gpu: ShadowDevice) -> list[StepRecord]:
    """Run the requests once with the events of a case, capture what is pending, and run again."""
    core = build(bench.checkpoints(case), case, "cuda")
    requests = make_requests(case.requests, bench.grammar)
    drive(core, case, requests, gpu)
    while core.idle_step():
        """Capture the graphs of an engine that does not use its draft."""
    return drive(core, replace(case, unfit_at_step=None), requests, gpu).steps


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE", "DFLASH"])
@pytest.mark.parametrize("graphs", ["off", "cuda"])
def test_an_unfit_draft_adds_no_launch_to_a_step(bench, gpu, algorithm, graphs):
    plain = ShadowCase(name="plain", graphs=graphs)
    unfit = replace(plain, name="unfit", algorithm=algorithm, unfit_at_step=5)
    expected = launches(steady_steps(bench, plain, gpu))
    assert expected
    assert launches(steady_steps(bench, unfit, gpu)) == expected
