"""The lines that an engine logs when it accepts requests."""

import re

import pytest

from specdecode_api.metrics import core
from specdecode_api.speculation import Algorithm
from specdecode_engine.serve.control.ready_line import ReadyEngine, kv_tokens
from specdecode_engine.stats.snapshot import CoreSnapshot

READY = {
    "host": "127.0.0.1", "port": 8000, "model": "chat", "kv_tokens": 4096,
    "algorithm": Algorithm.EAGLE3, "max_steps": 7, "needs_key": False,
}  # fmt: skip


def lines(**changes):
    return list(ReadyEngine(**{**READY, **changes}).lines(42.13))


def test_the_line_has_address_model_cache_and_draft_steps():
    assert lines() == [
        "ready in 42.1 s: http://127.0.0.1:8000/v1, model chat, 4096 tokens of KV cache, "
        "EAGLE3 up to 7 draft steps"
    ]
    plain = lines(algorithm=Algorithm.NONE, kv_tokens=None, host="::1")
    assert plain == ["ready in 42.1 s: http://[::1]:8000/v1, model chat, no speculation"]


@pytest.mark.parametrize(("host", "own"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_a_second_line_reports_that_other_machines_can_connect(host, own):
    ready, reachable = lines(host=host)
    assert f"http://{own}:8000/v1" in ready
    assert reachable.startswith("other machines can reach it, without an API key: it listens on")
    assert "--host 127.0.0.1" in reachable
    assert ", with an API key: " in lines(host=host, needs_key=True)[1]


def test_tokens_are_those_of_all_pages():
    counted = CoreSnapshot({core.CACHE_CONFIG_INFO: {("16", "300"): 1}})
    assert kv_tokens(counted) == 4800
    assert kv_tokens(CoreSnapshot()) is None


def test_a_started_engine_logs_that_it_is_ready(start_server, caplog):
    with caplog.at_level("INFO"):
        server = start_server()
    found = [each for each in caplog.messages if each.startswith("ready in")]
    assert len(found) == 1
    assert re.fullmatch(
        rf"ready in \d+\.\d s: {server.url}/v1, model echo, no speculation", found[0]
    )


def test_the_real_core_reports_the_tokens_of_its_cache(drafting_server):
    service = drafting_server.service
    ready = service._ready_engine(drafting_server.snapshot())
    pages = drafting_server.core.scheduler.pages
    assert ready.kv_tokens == pages.total * pages.page_size
    assert (ready.algorithm, ready.max_steps) == (Algorithm.STANDALONE, 3)
