"""What Prometheus, people and clients can look up."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdecode_api.metrics.core import ACCEPT_LENGTH
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot

ECHO_TABLE = ""  # the echo core decides nothing by a table
FIELDS = {"model": "echo", "prompt": "the quick brown fox"}


def scrape(server):
    text = server.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_shows_what_the_core_and_the_server_did(start_server):
    server = start_server(tokens_per_step=3)
    server.client.completions.create(**FIELDS, max_tokens=9)
    server.client.completions.create(**FIELDS, max_tokens=50, stop="brown")
    server.post("/v1/completions", json=FIELDS | {"n": 0})
    values = scrape(server)
    assert values["specdecode_emitted_tokens_total",] >= 9
    assert values["specdecode_accept_length",] == 3
    assert values["specdecode_num_steps",] == 2
    assert values["specdecode_running_requests",] == 0
    assert values["specdecode_waiting_requests",] == 0
    assert values["specdecode_kv_pages", "free"] == 100
    assert values["specdecode_kv_pages", "used"] == 0
    table = server.service.tables.table_hash
    assert values["specdecode_requests_total", "length", ECHO_TABLE] == 1
    assert values["specdecode_requests_total", "stop", ECHO_TABLE] == 1
    assert values["specdecode_http_errors_total", "400", table] == 1
    assert values["specdecode_time_to_first_token_seconds_count", ECHO_TABLE] == 2
    assert values["specdecode_request_seconds_count", ECHO_TABLE] == 2
    tokens = values["specdecode_request_completion_tokens_total",]
    assert values["specdecode_inter_token_seconds_count", ECHO_TABLE] == tokens - 2 * 3
    assert values["specdecode_request_prompt_tokens_total",] > 0


@pytest.mark.parametrize(
    "name",
    ["drafted_tokens_total", "accepted_tokens_total", "request_steps_total", "decode_steps_total",
     "prompt_tokens_total", "decode_seconds_total", "prefill_seconds_total"],
)  # fmt: skip
def test_every_total_of_the_core_is_exported(server, name):
    assert (f"specdecode_{name}",) in scrape(server)


def test_openmetrics_is_spoken_to_who_asks(echo_server):
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(echo_server.url + "/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_accept_length_before_the_first_round_is_0():
    assert CoreSnapshot()[ACCEPT_LENGTH] == 0
    metrics = EngineMetrics(CoreSnapshot)
    assert metrics.registry.get_sample_value("specdecode_accept_length") == 0


def test_models_lists_the_served_name(server):
    models = server.client.models.list().data
    assert [model.id for model in models] == ["echo"]
    assert models[0].max_model_len == server.service.engine.context_length
    assert (models[0].root, models[0].parent) == (server.service.boot.model.path, None)
    assert server.client.models.retrieve("echo").id == "echo"
    assert server.get("/v1/models/other").status_code == 404


def test_model_info_is_that_of_sglang_by_both_paths(server):
    info = server.get("/model_info").json()
    assert info == server.get("/get_model_info").json()
    path = server.service.boot.model.path
    assert (info["model_path"], info["tokenizer_path"]) == (path, path)
    assert (info["served_model_name"], info["is_generation"]) == ("echo", True)


def test_server_info_shows_boot_and_state(server):
    info = server.get("/server_info").json()
    assert info["model"] == "echo"
    assert info["state"] == "ready"
    assert info["boot"]["speculation"]["algorithm"] == "NONE"
    assert info["snapshot"]["running_requests"] == 0
