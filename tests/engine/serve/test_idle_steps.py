"""Deferred work of the core: done by the engine thread while nothing runs, never in between."""

import time
from collections.abc import Callable

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.serve.engine.core import Core
from specdecode_engine.serve.engine.engine_thread import EngineThread
from tests.engine.serve.conftest import EXAMPLES
from tests.engine.serve.echo_core import EchoCore


class DeferringCore(EchoCore):
    """Defers some pieces of work and notes when each was done."""

    def __init__(self, pieces: int) -> None:
        super().__init__(step_seconds=0.01)
        self.pieces = pieces
        self.was_busy: list[bool] = []

    def idle_step(self) -> bool:
        self.was_busy.append(self.has_work())
        self.pieces -= 1
        return self.pieces > 0


def run(load: Callable[[], Core]) -> EngineThread:
    thread = EngineThread(load, lambda: None, lambda _: None, lambda _: None, time.monotonic)
    thread.start()
    return thread


def submit(thread: EngineThread, request: Request) -> None:
    thread.put(lambda core: core.submit(request))


def end(thread: EngineThread) -> None:
    thread.stop()
    assert thread.join(30)


def test_an_idle_engine_captures_the_graphs_that_the_start_had_no_time_for(eventually) -> None:
    boot = EngineBoot.model_validate(
        {
            "model": {"path": str(EXAMPLES / "target"), "dtype": "float32"},
            "graphs": {"mode": "static", "batch_sizes": (1, 2, 4), "max_seconds": 0},
            "device": "cpu",
        }
    )
    core = build_poisoned(boot, 64)
    assert len(core.snapshot().graphs.pending) == 3
    thread = run(lambda: core)
    eventually(lambda: core.snapshot().graphs.pairs == 3)
    end(thread)
    assert thread.snapshot.graphs.pending == ()


def test_deferred_work_waits_until_requests_end(eventually) -> None:
    core = DeferringCore(3)
    thread = run(lambda: core)
    for number in range(5):
        params = SamplingParams(seed=0, max_tokens=8, temperature=0.0, ignore_eos=True)
        submit(thread, Request(str(number), (1, 2, 3), params))
    eventually(lambda: core.pieces == 0)
    assert core.steps > 0
    assert core.was_busy == [False] * 3
    end(thread)


def test_an_engine_without_deferred_work_waits_for_commands_only(eventually) -> None:
    core = DeferringCore(1)
    thread = run(lambda: core)
    eventually(lambda: core.pieces == 0)
    params = SamplingParams(seed=0, max_tokens=2, temperature=0.0, ignore_eos=True)
    submit(thread, Request("1", (1, 2, 3), params))
    eventually(lambda: core.steps > 0 and not core.has_work())
    end(thread)
    assert core.was_busy[0] is False


def test_scrapes_do_not_put_deferred_work_off(eventually) -> None:
    core = DeferringCore(3)
    thread = run(lambda: core)
    deadline_s = time.monotonic() + 10
    while core.pieces and time.monotonic() < deadline_s:
        thread.put(thread.take_snapshot)
        time.sleep(0.005)
    assert core.pieces == 0
    end(thread)
