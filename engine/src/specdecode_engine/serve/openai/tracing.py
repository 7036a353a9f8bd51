"""Spans of requests for OpenTelemetry: queue, prefill and decode of every choice.

They are made when a response has ended, from what the server knows by then, so that tracing costs
no step any time. A request continues the trace of its header `traceparent`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from os import environ
from typing import TYPE_CHECKING, Any, ClassVar

from specdecode_api.report import TerminationReason
from specdecode_engine.batch.request import Output
from specdecode_engine.serve.openai.output_processor import OutputProcessor

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORT_SECONDS = 5.0
SERVICE = "specdecode-engine"
PROVIDER = "specdecode"
TEXT_PATH = "/v1/completions"


class TracingUnavailable(Exception):
    """Spans are to be sent, and the package for it is not installed."""

    reason: ClassVar[TerminationReason] = TerminationReason.BOOT_FILE_INVALID


class ChoiceTimes:
    """When a choice left the queue and got its first and its latest output, in clock seconds."""

    __slots__ = ("admitted_s", "first_s", "latest_s")

    def __init__(self) -> None:
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.latest_s: float | None = None

    def note(self, output: Output, now_s: float) -> None:
        """Note an output that arrives now."""
        if self.first_s is None:
            self.admitted_s, self.first_s = output.admitted_s, now_s
        self.latest_s = now_s


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call that has ended, with its choices; times are in clock seconds.

    `cached_tokens` of the `prompt_tokens` were in the prefix cache.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    request_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    started_s: float
    ended_s: float
    choices: tuple[tuple[OutputProcessor, ChoiceTimes], ...]


class Tracing:
    """Sends the spans of calls to a receiver of OTLP over HTTP, in a thread of the SDK.

    Args:
        provider: makes the spans.
        clock: that of the times in a `TracedCall`.
    """

    def __init__(self, provider: "TracerProvider", clock: Callable[[], float]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE, version(SERVICE))
        self._offset_s = time.time() - clock()

    def record(self, call: TracedCall) -> None:
        """Make the spans of a call; safe in any thread."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(call.headers)
        root = self._tracer.start_span(
            f"{call.method} {call.path}",
            parent,
            SpanKind.SERVER,
            call_attributes(call),
            start_time=self._ns(call.started_s),
        )
        for choice, times in call.choices:
            self._record_choice(call, choice, times, set_span_in_context(root))
        if any(choice.finish_reason in (None, "error") for choice, _ in call.choices):
            root.set_status(StatusCode.ERROR, "not complete")
        root.end(self._ns(call.ended_s))

    def _record_choice(
        self, call: TracedCall, choice: OutputProcessor, times: ChoiceTimes, parent: "Context"
    ) -> None:
        index = {"specdecode.choice": choice.index}
        first_s, latest_s = times.first_s, times.latest_s
        if first_s is None or latest_s is None:
            self._record("queue", parent, index, call.started_s, call.ended_s)
            return
        admitted_s = first_s if times.admitted_s is None else times.admitted_s
        self._record("queue", parent, index, call.started_s, admitted_s)
        self._record("prefill", parent, index, admitted_s, first_s)
        decode = {
            "specdecode.output_tokens": choice.completion_tokens,
            "specdecode.decode_steps": choice.decode_steps,
            "specdecode.num_drafts": choice.drafts,
            "specdecode.num_draft_tokens": choice.drafted,
            "specdecode.num_accepted_tokens": sum(choice.accepted_at),
            "specdecode.finish_reason": _finish_reason(choice),
        }
        self._record("decode", parent, index | decode, first_s, latest_s)

    def _record(
        self,
        name: str,
        parent: "Context",
        attributes: Mapping[str, Any],
        start_s: float,
        end_s: float,
    ) -> None:
        span = self._tracer.start_span(
            name, parent, attributes=attributes, start_time=self._ns(start_s)
        )
        span.end(self._ns(max(start_s, end_s)))

    def _ns(self, clock_s: float) -> int:
        return int((clock_s + self._offset_s) * 1e9)

    def close(self) -> None:
        """Send what is left, for at most `EXPORT_SECONDS`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(EXPORT_SECONDS)


def call_attributes(call: TracedCall) -> dict[str, str | int | list[str]]:
    """Return the attributes of a call's span, by the semantic conventions for generative AI.

    Tokens are on this span alone, so that sums over spans count each token once.
    """
    choices = [choice for choice, _ in call.choices]
    return {
        "gen_ai.operation.name": "text_completion" if call.path == TEXT_PATH else "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": call.model,
        "gen_ai.response.id": call.request_id,
        "gen_ai.response.finish_reasons": [_finish_reason(choice) for choice in choices],
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.usage.output_tokens": sum(each.completion_tokens for each in choices),
        "gen_ai.usage.reasoning.output_tokens": sum(each.reasoning_tokens for each in choices),
    }


def _finish_reason(choice: OutputProcessor) -> str:
    return str(choice.finish_reason or "abort")


def start_tracing(endpoint: str | None, clock: Callable[[], float]) -> Tracing | None:
    """Return what sends spans to `endpoint`, or as the environment determines; else None.

    Raises:
        TracingUnavailable: the extra `tracing` is not installed.
    """
    if endpoint is None and not any(environ.get(name) for name in VARIABLES):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable(
            f"spans cannot be sent: {error}; install specdecode-engine[tracing], or remove "
            f"server.tracing_endpoint and {VARIABLES[0]}"
        ) from None
    url = None if endpoint is None else endpoint.rstrip("/") + "/v1/traces"
    given = {"service.name": SERVICE, "service.version": version(SERVICE)}
    provider = TracerProvider(resource=Resource.create(given), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, clock)
