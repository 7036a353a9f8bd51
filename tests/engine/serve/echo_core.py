"""A core without a model, for tests of the server: it repeats the prompt."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdecode_api.boot import EngineBoot
from specdecode_api.metrics import core
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.request import (
    FinishReason,
    Output,
    QueueFull,
    Request,
    RequestTooLong,
    TokenLogprobs,
)
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.stats.snapshot import CoreSnapshot, Values


class EchoCore:
    """Generated token n is token n of the prompt, modulo the length of the prompt.

    Args:
        context_length: tokens of prompt and generated text together.
        tokens_per_step: tokens that a step adds to each request: all drafts are accepted.
        step_seconds: duration of a step.
        max_requests: further requests are refused.
        eos_token_ids: tokens that end a sequence.
        failing_step: the step that raises, counted from 1.
    """

    def __init__(
        self,
        context_length: int = 256,
        tokens_per_step: int = 3,
        step_seconds: float = 0.0,
        max_requests: int = 64,
        eos_token_ids: Sequence[int] = (),
        failing_step: int | None = None,
    ) -> None:
        self.context_length = context_length
        self.aborted: list[str] = []
        self.steps = 0
        self._tokens_per_step = tokens_per_step
        self._step_seconds = step_seconds
        self._max_requests = max_requests
        self.eos_token_ids = frozenset(eos_token_ids)
        self._failing_step = failing_step
        self._running: dict[str, Request] = {}
        self._done: dict[str, int] = {}
        self._emitted = 0
        self._request_steps = 0

    @property
    def latest_step(self) -> str:
        """What the newest step computes."""
        return f"the newest step is number {self.steps}"

    def submit(self, request: Request) -> None:
        """Queue a request."""
        length = len(request.prompt_ids) + request.sampling.max_tokens
        if length > self.context_length:
            raise RequestTooLong(f"{length} tokens exceed the context of {self.context_length}")
        if len(self._running) >= self._max_requests:
            raise QueueFull(f"{len(self._running)} requests are running; retry later")
        self._running[request.request_id] = request
        self._done[request.request_id] = len(request.output_ids)

    def resume(self, request: Request) -> None:
        """Suspend nothing, so that nothing is resumed."""
        raise AssertionError(f"{request.request_id} was not suspended")

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        if self._running.pop(request_id, None) is not None:
            self.aborted.append(request_id)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running)

    def idle_step(self) -> bool:
        """Defer nothing."""
        return False

    def step(self) -> list[Output]:
        """Add the next tokens to each request."""
        self.steps += 1
        time.sleep(self._step_seconds)
        if self.steps == self._failing_step:
            raise RuntimeError("this core fails on purpose")
        return [self._advance(request) for request in list(self._running.values())]

    def reload(self, table: RangeTable) -> None:
        """Accept any table; no draft steps are chosen here."""

    def snapshot(self) -> CoreSnapshot:
        """State and totals."""
        running, steps = len(self._running), self._request_steps
        single = {
            core.RUNNING_REQUESTS: running,
            core.NUM_STEPS: self._tokens_per_step - 1,
            core.DECODE_STEPS: self.steps,
            core.REQUEST_STEPS: steps,
            core.DRAFTED_TOKENS: steps * (self._tokens_per_step - 1),
            core.ACCEPTED_TOKENS: self._emitted - steps,
            core.EMITTED_TOKENS: self._emitted,
            core.ACCEPT_LENGTH: self._emitted / steps if steps else 0.0,
        }
        pages: Values = {("free",): 100 - running, ("used",): running}
        return CoreSnapshot(
            {core.KV_PAGES: pages, **{each: {(): value} for each, value in single.items()}}
        )

    def _advance(self, request: Request) -> Output:
        start = self._done[request.request_id]
        token_ids, reason = self._next(request, start)
        self._done[request.request_id] = start + len(token_ids)
        self._emitted += len(token_ids)
        self._request_steps += bool(token_ids)
        if reason is not None:
            del self._running[request.request_id]
        decode_steps = int(bool(token_ids))
        return Output(
            request_id=request.request_id,
            token_ids=token_ids,
            logprobs=_score(token_ids, request.sampling.logprobs),
            prompt_logprobs=_score_prompt(request) if start == len(request.output_ids) else None,
            finish_reason=reason,
            stop_token_id=token_ids[-1] if reason is FinishReason.STOP else None,
            decode_steps=decode_steps,
            drafted=decode_steps * (self._tokens_per_step - 1),
            accepted=len(token_ids) - decode_steps,
        )

    def _next(self, request: Request, start: int) -> tuple[tuple[int, ...], FinishReason | None]:
        sampling, prompt = request.sampling, request.prompt_ids
        if sampling.max_tokens == 0:
            return (), FinishReason.LENGTH
        stops = request.ending_ids(self.eos_token_ids)
        token_ids: list[int] = []
        for position in range(start, start + self._tokens_per_step):
            token_ids.append(prompt[position % len(prompt)])
            if token_ids[-1] in stops:
                return tuple(token_ids), FinishReason.STOP
            if position + 1 == sampling.max_tokens:
                return tuple(token_ids), FinishReason.LENGTH
        return tuple(token_ids), None


def _score_prompt(request: Request) -> tuple[TokenLogprobs, ...] | None:
    return _score(request.prompt_ids[1:], request.sampling.prompt_logprobs)


def _score(token_ids: tuple[int, ...], count: int | None) -> tuple[TokenLogprobs, ...] | None:
    if count is None:
        return None
    return tuple(
        TokenLogprobs(
            token_id=token_id,
            logprob=-0.5,
            top=tuple((rank, -0.5 * (rank + 1)) for rank in range(count)),
        )
        for token_id in token_ids
    )


def load_echo(boot: EngineBoot, progress: ShowProgress, **core: Any) -> LoadedEngine:
    """Load an echo core, also in a process of its own; `core` are its arguments."""
    return LoadedEngine(EchoCore(**core), Path(boot.model.path))


def die_at_start(boot: EngineBoot, progress: ShowProgress, **core: Any) -> LoadedEngine:
    """End the process as Linux does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def fail_at_start(boot: EngineBoot, progress: ShowProgress, **core: Any) -> LoadedEngine:
    """Fail as an engine whose configuration cannot be served."""
    raise ValueError("no weights in this folder; name another")
