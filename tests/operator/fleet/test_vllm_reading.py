"""What the fleet reads of vLLM, from the recorded exposition of vLLM 0.32.0."""

from dataclasses import replace
from pathlib import Path

import pytest

from specdecode_operator.fleet import BadScrape, exposition
from specdecode_operator.fleet.vllm_reading import (
    DRAFTED,
    EVIDENCE,
    FIRST_TOKENS,
    GENERATED,
    READ,
    START,
    STEPS,
    totals_of,
    vllm_reading,
)
from specdecode_operator.status.activity import after_look, measured

RECORDED = (Path(__file__).parent / "vllm-0.32.0-metrics.txt").read_text()
STARTED = f"{START} 1795863200.5\n"


def samples(text: str = RECORDED) -> exposition.Samples:
    return exposition.read_lines(text + STARTED, READ)


def without(name: str) -> str:
    return "".join(line for line in RECORDED.splitlines(True) if not line.startswith(name))


def test_every_metric_of_the_table_was_exported():
    found = samples()
    assert [name for row in EVIDENCE for name in row.metrics if not found.get(name)] == []


def test_requests_that_clients_give_up_are_counted():
    """17 began, 15 of them ended in a counter of requests, and none is counted as aborted."""
    totals = totals_of(samples())
    assert totals.requests == 17
    assert 'finished_reason="length",model_name="target"} 15.0' in RECORDED
    assert 'finished_reason="abort",model_name="target"} 0.0' in RECORDED


def test_time_per_token_is_by_tokens_and_not_by_steps():
    totals = totals_of(samples())
    assert (totals.decode_tokens, totals.request_steps) == (903, 801)
    assert totals.seconds_per_token == pytest.approx(10.783342467000466 / 903)
    assert totals_of(samples(RECORDED.replace("total_tokens", "x"))).seconds_per_token


def test_drafted_and_accepted_tokens_are_read():
    totals = totals_of(samples())
    assert (totals.verifications, totals.drafted, totals.accepted) == (801, 2403, 103)


@pytest.mark.parametrize("label", ['position="x"', 'engine="0"'])
def test_a_label_that_is_none_hides_no_reading(label):
    """One pod's response must not fail the look at all pods of a resource."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    text = without(name) + f"{name}{{{label}}} 3.0\n"
    assert totals_of(samples(text)).accepted == 103


def test_a_metric_without_speculation_is_unknown_and_not_zero():
    totals = totals_of(samples(without("vllm:spec_decode_")))
    assert DRAFTED not in samples(without("vllm:spec_decode_"))
    assert (totals.drafted, totals.accepted) == (None, None)


@pytest.mark.parametrize("name", [GENERATED, FIRST_TOKENS, STEPS])
def test_a_version_without_a_metric_gives_no_reading(name):
    with pytest.raises(BadScrape, match="a supported version"):
        vllm_reading("uid", "v1-abc", samples(without(name)))


API_SERVERS = (
    Path(__file__).parents[1] / "runtimes" / "recorded" / "vllm-0.32.0-api-servers-metrics.txt"
).read_text()


def api_servers(text: str = API_SERVERS) -> exposition.Samples:
    """Samples of several API servers, which export nothing of their processes."""
    return exposition.read_lines(text, READ)


def test_several_api_servers_start_with_their_container():
    assert START not in api_servers()
    reading = vllm_reading("uid", "v1-abc", api_servers(), 1795863200.0)
    assert (reading.start_s, reading.emitted_tokens) == (1795863200.0, 751)
    assert vllm_reading("uid", "v1-abc", samples(), 7.0).start_s == 1795863200.5


def test_several_api_servers_have_measured_work_in_the_status():
    grown = API_SERVERS.replace(
        'vllm:generation_tokens_total{engine="0",model_name="target"} 766.0',
        'vllm:generation_tokens_total{engine="0",model_name="target"} 1366.0',
    ).replace(
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="target"} 267.0',
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="target"} 467.0',
    )
    texts = (API_SERVERS, grown)
    first, later = (vllm_reading("uid", "v1-abc", api_servers(text), 5.0) for text in texts)
    window = after_look(None, "resource", [first], 1000.0)
    window = after_look(window, "resource", [later], 1060.0)
    assert measured(None, window) == {"acceptLength": "3.00", "tokensPerSecond": "10"}


def test_counters_that_fell_are_those_of_another_process():
    """The status of a pod may still have the start of the container before."""
    later = vllm_reading("uid", "v1-abc", api_servers(), 5.0)
    first = replace(later, emitted_tokens=later.emitted_tokens + 1)
    window = after_look(None, "resource", [first], 1000.0)
    window = after_look(window, "resource", [later], 1060.0)
    assert measured(None, window) is None


def test_copies_of_the_model_in_a_pod_add_up():
    second = RECORDED.replace('engine="0"', 'engine="1"')
    assert totals_of(samples(RECORDED + second)).requests == 34


def test_an_amount_that_is_none_is_refused():
    broken = RECORDED.replace(
        'vllm:generation_tokens_total{engine="0",model_name="target"} 920.0',
        'vllm:generation_tokens_total{engine="0",model_name="target"} NaN',
    )
    with pytest.raises(BadScrape, match="is nan"):
        totals_of(samples(broken))


def test_readings_become_the_measured_work_of_the_status():
    grown = RECORDED.replace(
        'vllm:generation_tokens_total{engine="0",model_name="target"} 920.0',
        'vllm:generation_tokens_total{engine="0",model_name="target"} 1820.0',
    ).replace(
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="target"} 801.0',
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="target"} 1201.0',
    )
    first, later = (vllm_reading("uid", "v1-abc", samples(text)) for text in (RECORDED, grown))
    assert first.key.config_hash == "v1-abc"
    window = after_look(None, "resource", [first], 1000.0)
    window = after_look(window, "resource", [later], 1060.0)
    assert measured(None, window) == {"acceptLength": "2.25", "tokensPerSecond": "15"}
