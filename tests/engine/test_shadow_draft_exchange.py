"""Drafts are exchanged on the shadow CUDA device: without a wait, and without memory of it."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.batch.request import Output
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.record_tensors import named_tensors
from specdecode_engine.model.drafts import draft_exchange
from specdecode_engine.startup.draft_staging import DraftStaging
from tests.engine.test_draft_exchange import reweighted
from tests.engine.whole_engine import DRAFTS
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.suite.cases import ShadowCase
from tests.shadow_cuda.suite.engines import build, drive, make_requests
from tests.shadow_cuda.suite.outcome import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("shadow"))


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda(2 << 30) as device:
        yield device


PIECE_BYTES = 4096


class PieceBetweenSteps:
    """Runs one piece of an exchange before each step; none may wait or take device memory."""

    def __init__(self, core: EngineCore, gpu: ShadowDevice, folder: Path) -> None:
        assert core.stage_draft is not None
        used = gpu.memory.used_bytes()
        self._pieces = core.stage_draft(folder)
        row_bytes = core.context.target.embedding[0].nbytes  # of DFLASH's mask token
        assert gpu.memory.used_bytes() <= used + row_bytes
        self._gpu = gpu
        self._step = core.step
        self.count = 0

    def step(self) -> list[Output]:
        self.run_next()
        return self._step()

    def run_next(self) -> bool:
        """Return whether there was a piece left."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        waits, event_waits = len(self._gpu.waits), self._gpu.event_waits
        piece()
        assert (len(self._gpu.waits), self._gpu.event_waits) == (waits, event_waits)
        self.count += 1
        return True


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE", "MTP", "DFLASH"])
def test_a_draft_is_exchanged_while_requests_run(bench, gpu, tmp_path, monkeypatch, algorithm):
    monkeypatch.setattr(draft_exchange, "PIECE_BYTES", PIECE_BYTES)
    case = ShadowCase(name="exchange", algorithm=algorithm, graphs="cuda")
    first = getattr(bench.checkpoints(case), DRAFTS[algorithm])
    other = reweighted(first, tmp_path / "other")
    core = build(bench.checkpoints(case), case, "cuda")
    exchange = PieceBetweenSteps(core, gpu, other)
    with mock.patch.object(core, "step", exchange.step):
        ran = drive(core, case, make_requests(case.requests, bench.grammar), gpu)
    expected = bench.cpu_answers(case)
    assert {name: answer.tokens for name, answer in ran.answers.items()} == {
        name: answer.tokens for name, answer in expected.items()
    }
    assert exchange.count > 10
    while exchange.run_next():
        """Finish."""
    assert core.counters.decode.drafted_tokens > 0
    assert_weights_are_those_of(core, other)
    assert gpu.errors == []


def assert_weights_are_those_of(core: EngineCore, folder: Path) -> None:
    """Read the draft again and compare every tensor that is copied."""
    staging = core.stage_draft
    assert isinstance(staging, DraftStaging)
    copies = staging._stage(folder).copies
    assert copies
    assert all(torch.equal(into.cpu(), source.cpu()) for into, source in copies)


def test_nothing_refused_changes_the_draft_on_the_device(bench, gpu, tmp_path):
    case = ShadowCase(name="exchange", algorithm="EAGLE3")
    checkpoints = bench.checkpoints(case)
    core = build(checkpoints, case, "cuda")
    staging = core.stage_draft
    assert isinstance(staging, DraftStaging)
    before = [tensor.clone() for _, tensor in named_tensors(staging.models.draft)]
    with pytest.raises(DraftRefused, match="the running draft stays"):
        staging(checkpoints.eagle)
    after = [tensor for _, tensor in named_tensors(staging.models.draft)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
