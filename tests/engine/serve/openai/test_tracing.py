"""Spans of requests at a real receiver of OTLP over HTTP."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from specdecode_engine.serve.openai import tracing

BODY = {"prompt": "the quick brown fox", "max_tokens": 7, "ignore_eos": True}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver:
    """Collects the spans that are sent to it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                data = self.rfile.read(int(self.headers["content-length"]))
                receiver.take(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for each in resource.resource.attributes:
                if each.key == "service.name":
                    self.services.add(each.value.string_value)
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def traced(start_server: Callable[..., object], receiver: Receiver):
    return start_server(options={"tracing_endpoint": receiver.url})


def lists(span: Span) -> dict[str, list[str]]:
    arrays = {each.key: each.value.array_value.values for each in span.attributes}
    return {
        name: [value.string_value for value in found] for name, found in arrays.items() if found
    }


def attributes(span: Span) -> dict[str, object]:
    found = {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }
    return {name: value for name, value in found.items() if not hasattr(value, "values")}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_spans_that_continue_the_trace_of_its_client(
    traced, receiver, eventually, stream
):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = BODY | {"n": 2, "stream": stream}
    answer = traced.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    eventually(lambda: len(receiver.spans) == 7)
    (root,) = receiver.named("POST /v1/completions")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert root.kind == Span.SPAN_KIND_SERVER
    assert lists(root) == {"gen_ai.response.finish_reasons": ["length", "length"]}
    for name in ("queue", "prefill", "decode"):
        spans = receiver.named(name)
        assert {attributes(span)["specdecode.choice"] for span in spans} == {0, 1}
        assert len(spans) == 2
        for span in spans:
            assert span.parent_span_id == root.span_id
            assert root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
    decode = attributes(receiver.named("decode")[0])
    assert decode["specdecode.decode_steps"] == 3
    assert decode["specdecode.num_draft_tokens"] == 6
    assert decode["specdecode.num_accepted_tokens"] == 4
    assert receiver.services == {"specdecode-engine"}


OPERATIONS = {
    "/v1/completions": ("text_completion", BODY),
    "/v1/chat/completions": ("chat", {"messages": [{"role": "user", "content": "the fox"}]}),
    "/v1/responses": ("chat", {"input": "the fox"}),
}


@pytest.mark.parametrize("path", OPERATIONS)
def test_tokens_are_on_one_span_that_names_operation_and_provider(
    built_server, receiver, eventually, path
):
    sending = tracing.start_tracing(receiver.url, built_server.service.clock)
    assert sending is not None
    built_server.service.tracing = sending
    operation, body = OPERATIONS[path]
    try:
        # The second call of the same prompt reads what the first one left in the prefix cache.
        usages = [built_server.post(path, json=body).json()["usage"] for _ in range(2)]
        eventually(lambda: len(receiver.spans) == 8)
    finally:
        built_server.service.tracing = None
        sending.close()
    found = [attributes(root) for root in receiver.named(f"POST {path}")]
    for root, usage in zip(found, usages, strict=True):
        assert root["gen_ai.operation.name"] == operation
        assert root["gen_ai.provider.name"] == "specdecode"
        output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
        assert root["gen_ai.usage.output_tokens"] == output_tokens
        input_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
        assert root["gen_ai.usage.input_tokens"] == input_tokens
        assert root["gen_ai.usage.cache_read.input_tokens"] in range(input_tokens)
        assert root["gen_ai.usage.reasoning.output_tokens"] == 0
    children = [span for name in ("queue", "prefill", "decode") for span in receiver.named(name)]
    assert not [key for span in children for key in attributes(span) if key.startswith("gen_ai.")]
    assert all(attributes(span)["specdecode.output_tokens"] for span in receiver.named("decode"))


def test_the_names_of_attributes_are_those_of_the_conventions():
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    call = tracing.TracedCall("POST", "/v1/completions", {}, "id", "model", 9, 4, 0.0, 1.0, ())
    found = tracing.call_attributes(call)
    assert {name for name in found if name not in known} == set()
    assert found["gen_ai.usage.cache_read.input_tokens"] == 4


def test_the_spans_of_a_real_engine_follow_each_other(built_server, receiver, eventually):
    sending = tracing.start_tracing(receiver.url, built_server.service.clock)
    assert sending is not None
    built_server.service.tracing = sending
    try:
        answer = built_server.post("/v1/completions", json=BODY).json()
        eventually(lambda: len(receiver.spans) == 4)
    finally:
        built_server.service.tracing = None
        sending.close()
    queue, prefill, decode = (receiver.named(name)[0] for name in ("queue", "prefill", "decode"))
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert prefill.start_time_unix_nano < prefill.end_time_unix_nano
    steps = attributes(decode)["specdecode.decode_steps"]
    assert steps == answer["usage"]["specdecode"]["decode_steps"]


def test_a_client_that_leaves_has_a_span_too(start_server, receiver, eventually):
    server = start_server(step_seconds=0.02, options={"tracing_endpoint": receiver.url})
    body = BODY | {"max_tokens": 200, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=10) as answer:
        next(answer.iter_lines())
    eventually(lambda: len(receiver.spans) == 4)
    (root,) = receiver.named("POST /v1/completions")
    assert root.status.code == root.status.STATUS_CODE_ERROR


def test_a_trace_that_is_not_sampled_is_not_sent(traced, receiver, eventually):
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert traced.post("/v1/completions", json=BODY, headers=unsampled).status_code == 200
    assert traced.post("/v1/completions", json=BODY).status_code == 200
    eventually(lambda: len(receiver.spans) == 4)
    assert receiver.spans[0].trace_id.hex() != TRACE


@pytest.mark.parametrize("header", ["", "00-zz-1-01", "x" * 5000])
def test_a_bad_traceparent_starts_a_trace_of_its_own(traced, receiver, eventually, header):
    answer = traced.post("/v1/completions", json=BODY, headers={"traceparent": header})
    assert answer.status_code == 200
    eventually(lambda: len(receiver.spans) == 4)
    (root,) = receiver.named("POST /v1/completions")
    assert root.parent_span_id == b""


def test_a_receiver_that_is_gone_disturbs_nothing(start_server, free_port, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setattr(tracing, "EXPORT_SECONDS", 0.5)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    server = start_server(options={"tracing_endpoint": f"http://127.0.0.1:{free_port}"})
    for _ in range(3):
        assert server.post("/v1/completions", json=BODY).status_code == 200


def test_the_environment_names_a_receiver_and_by_default_there_is_none(
    receiver, monkeypatch, built_server
):
    clock = built_server.service.clock
    assert built_server.service.tracing is None
    assert tracing.start_tracing(None, clock) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    sending = tracing.start_tracing(None, clock)
    assert sending is not None
    sending.close()


def test_without_the_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(tracing.TracingUnavailable, match=r"install specdecode-engine\[tracing\]"):
        tracing.start_tracing("http://127.0.0.1:1", lambda: 0.0)
