"""Servers and load: a real server's start and processor time, aiperf's results read."""

from pathlib import Path

import httpx
import pytest

from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from bench.cpu.serve_bench.load import Lengths, LoadFailed, read_point
from checks.harness.servers import Recipe, ServerFailed, own_recipe, serving

SMALL = Size(2, 64, vocab=512, heads=4, context=256, kv_heads=2, inner=96)


def test_our_server_answers_and_its_processor_time_grows(tmp_path: Path) -> None:
    target, _ = write_pair(tmp_path, SMALL, STRONG)
    with serving(own_recipe(target, "float32", 4)) as server:
        before_s = server.cpu_s()
        body = {"model": server.model, "prompt": "abc", "max_tokens": 200, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 200
        assert server.cpu_s() > before_s > 0


def test_a_server_that_ends_leaves_its_last_words() -> None:
    recipe = Recipe("broken", "m", lambda port: ("sh", "-c", f"echo no port {port} for me; exit 3"))
    with pytest.raises(ServerFailed, match="broken ended: no port"), serving(recipe):
        pass


def test_a_point_is_read_from_aiperfs_results() -> None:
    document = {
        "request_count": {"avg": 16.0},
        "request_throughput": {"avg": 0.5},
        "request_latency": {"p50": 900.06, "p99": 1200.0},
        "time_to_first_token": {"p50": 80.0},
        "inter_token_latency": {"p50": 12.345},
    }
    point = read_point(document, Lengths(32, 20), 8, 16, cpu_s=4.0)
    assert point.tokens_per_s == 10.0
    assert point.latency_p50_ms == 900.1
    assert point.server_tokens_per_cpu_s == 80.0


def test_missing_requests_are_a_failure_with_the_numbers() -> None:
    with pytest.raises(LoadFailed, match="15 of 16 requests"):
        read_point({"request_count": {"avg": 15.0}}, Lengths(32, 20), 8, 16, 1.0)
