"""The field `priority`: which of the waiting requests starts first."""

import threading
from collections.abc import Callable, Iterator

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Output
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.startup.build import build_core
from tests.engine.serve.conftest import EXAMPLES, RunningServer, wait_until

PROMPT = {"prompt": "the quick brown fox", "temperature": 0}
FIELDS = {
    "/v1/completions": PROMPT | {"max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2,
                     "model": "echo"},
}  # fmt: skip


class Gate:
    """Lets the steps of an engine begin, or holds them back."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.has_waited = threading.Event()

    def guard(self, step: Callable[[], list[Output]]) -> Callable[[], list[Output]]:
        def guarded() -> list[Output]:
            if not self.is_open.is_set():
                self.has_waited.set()
            assert self.is_open.wait(60)
            return step()

        return guarded


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def single_slot(gate: Gate) -> Iterator[RunningServer]:
    """A server that runs one request at a time, by priority."""
    boot = EngineBoot.model_validate(
        {
            "model": {
                "path": str(EXAMPLES / "target"),
                "served_name": "echo",
                "dtype": "float32",
                "context_length": 256,
            },
            "scheduling": {"max_running_requests": 1, "priority": True},
            "memory": {"kv_cache_bytes": 16 * 2**20},
            "device": "cpu",
            "threads": 1,
            "server": {"host": "127.0.0.1", "port": 0, "management_port": 0},
        }
    )

    def load(progress: object) -> LoadedEngine:
        core = build_core(boot)
        core.step = gate.guard(core.step)  # type: ignore[method-assign]
        return LoadedEngine(core, EXAMPLES / "target", core.facts)

    running = RunningServer(boot, load)
    yield running.wait_ready()
    running.close()


def test_a_lower_priority_starts_earlier(single_slot: RunningServer, gate: Gate) -> None:
    ended: list[str] = []
    streams = single_slot.service.engine._streams

    def send(name: str, fields: dict[str, int]) -> None:
        body = {**PROMPT, "max_tokens": 50, "ignore_eos": True, **fields}
        assert single_slot.post("/v1/completions", json=body).status_code == 200
        ended.append(name)

    calls = {
        "runs": {"priority": 9},
        "third": {"priority": 2},
        "fourth": {"priority": 2},
        "second": {},
        "first": {"priority": -1},
    }
    threads = [threading.Thread(target=send, args=call) for call in calls.items()]
    gate.is_open.clear()
    for thread in threads:
        before = set(streams)
        thread.start()
        wait_until(lambda before=before: streams.keys() > before)  # type: ignore[misc]
        assert gate.has_waited.wait(60)
    gate.is_open.set()
    for thread in threads:
        thread.join(60)
    assert ended == ["runs", "first", "second", "third", "fourth"]


@pytest.mark.parametrize("path", FIELDS)
def test_every_api_reads_it_and_answers_do_not_depend_on_it(
    single_slot: RunningServer, path: str
) -> None:
    texts = []
    for priority in (None, 0, -(2**31), 2**31 - 1):
        body = FIELDS[path] | {"priority": priority, "temperature": 0}
        answer = single_slot.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        texts.append(found.get("choices") or found.get("content") or found["output"][0]["content"])
    assert texts[1:] == texts[:-1]


@pytest.mark.parametrize("bad", ["1", 1.5, 2**31, True])
def test_a_priority_that_is_not_an_integer_in_range_is_refused(
    echo_server: RunningServer, bad: object
) -> None:
    answer = echo_server.post("/v1/completions", json=PROMPT | {"priority": bad})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")


def test_without_the_flag_it_is_ignored_and_counted(echo_server: RunningServer) -> None:
    def counted() -> float:
        lines = echo_server.get("/metrics").text.splitlines()
        name = 'specdecode_ignored_fields_total{field="priority"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    answer = echo_server.post("/v1/completions", json=PROMPT | {"max_tokens": 2, "priority": 5})
    assert answer.status_code == 200
    assert counted() == before + 1
