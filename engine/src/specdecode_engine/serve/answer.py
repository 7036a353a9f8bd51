"""Runs one call: its outputs become deltas of text, and in the end its usage."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from specdecode_engine.request import FinishReason
from specdecode_engine.serve import errors
from specdecode_engine.serve.async_engine import Generation
from specdecode_engine.serve.call import Call
from specdecode_engine.serve.echo import Echo
from specdecode_engine.serve.service import Service
from specdecode_engine.serve.transcript import Delta, ScoredToken, Transcript
from specdecode_engine.serve.usage import speculation_usage


@dataclass(slots=True)
class Choice:
    """One finished answer, put together from its deltas."""

    text: str = ""
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Answer:
    """The deltas of a call that the core has taken, all its sequences mixed as they come."""

    def __init__(self, service: Service, call: Call, outputs: Generation) -> None:
        self.call = call
        self._service = service
        self._outputs = outputs
        vocabulary = service.text.vocabulary
        texts = zip(call.requests, call.echoes, strict=True)
        self._echoes = {
            request.request_id: Echo(index, echo, request.prompt_ids, vocabulary)
            for index, (request, echo) in enumerate(texts)
        }
        self._transcripts = {
            name: Transcript(echo.index, vocabulary, call.stops, len(echo.text))
            for name, echo in self._echoes.items()
        }

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield what each output adds, unless nothing, until every sequence has ended.

        An echo comes first: at once, or scored, with the sequence's first output.
        """
        metrics, clock = self._service.metrics, self._service.clock
        watches = {name: metrics.stopwatch(self.call.started_s) for name in self._transcripts}
        for request in self.call.requests:
            echo = self._echoes[request.request_id]
            if echo.text and request.sampling.prompt_logprobs is None:
                yield echo.delta()
        async for output in self._outputs:
            if output.error is not None:
                raise errors.failed(output.error)
            transcript, watch = self._transcripts[output.request_id], watches[output.request_id]
            before = transcript.completion_tokens
            delta = transcript.push(output)
            watch.tick(transcript.completion_tokens - before, clock(), output.table)
            if delta.finish_reason is not None:
                watch.stop(delta.finish_reason, clock(), output.table)
                if output.finish_reason is None:
                    self._outputs.finish(output.request_id)
            if output.prompt_logprobs is not None:
                yield self._echoes[output.request_id].scored_delta(output.prompt_logprobs)
            if delta.text or delta.scored or delta.finish_reason:
                yield delta

    async def choices(self) -> list[Choice]:
        """Wait for the whole answers."""
        choices = [Choice() for _ in self.call.requests]
        async for delta in self.deltas():
            choice = choices[delta.index]
            choice.text += delta.text
            choice.scored.extend(delta.scored)
            choice.finish_reason = delta.finish_reason
        return choices

    @property
    def completion_tokens(self) -> int:
        """Tokens of all sequences so far, stop tokens included."""
        return sum(transcript.completion_tokens for transcript in self._transcripts.values())

    def count(self) -> None:
        """Tell the metrics, at the end, what became of the call."""
        metrics, transcripts = self._service.metrics, self._transcripts.values()
        metrics.count_call(self.call.prompt_tokens, self.completion_tokens)
        unfinished = sum(transcript.finish_reason is None for transcript in transcripts)
        if unfinished:
            metrics.count_cut_short(unfinished)

    def usage(self) -> dict[str, object]:
        """Return OpenAI's usage, and beside it what speculation did."""
        stats = [transcript.stats for transcript in self._transcripts.values()]
        specdecode = speculation_usage(stats)
        return {
            "prompt_tokens": self.call.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.call.prompt_tokens + self.completion_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": specdecode["accepted_tokens"],
                "rejected_prediction_tokens": specdecode["wasted_tokens"],
            },
            "specdecode": specdecode,
        }


@asynccontextmanager
async def answering(service: Service, call: Call) -> AsyncIterator[Answer]:
    """Have the core take a call; leaving aborts what still runs of it."""
    with service.lifecycle.call():
        async with service.engine.generation(call.requests) as outputs:
            answer = Answer(service, call, outputs)
            try:
                yield answer
            finally:
                answer.count()
