"""Where the new tokens of a step end a sequence: stop tokens before limits, token by token."""

from typing import NamedTuple

from specdecode_engine.batch.request import FinishReason, Output, Request
from specdecode_engine.batch.scheduler_output import StepOutput
from specdecode_engine.batch.sequence import Sequence


class StopCheck(NamedTuple):
    """How many of the new tokens are kept, and why the sequence ends there, if it does."""

    kept: int
    reason: FinishReason | None = None
    stop_token_id: int | None = None


def ending_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end the output.

    A request with a grammar cannot continue after EOS, so `ignore_eos` has no effect on it.
    """
    sampling = request.sampling
    ends = not sampling.ignore_eos or request.grammar is not None
    return sampling.stop_token_ids | eos_token_ids if ends else sampling.stop_token_ids


def check_stop(token_ids: tuple[int, ...], sequence: Sequence) -> StopCheck:
    """Find the first token at which the sequence stops or reaches its limit."""
    room = sequence.total_limit - len(sequence.tokens)
    stops = sequence.ending_ids
    if room > len(token_ids) and stops.isdisjoint(token_ids):
        return StopCheck(len(token_ids))  # the common case
    if room == 0:
        return StopCheck(0, FinishReason.LENGTH)
    for index, token in enumerate(token_ids):
        if token in stops:
            return StopCheck(index + 1, FinishReason.STOP, token)
        if index + 1 == room:
            return StopCheck(index + 1, FinishReason.LENGTH)
    return StopCheck(len(token_ids))


def make_output(
    sequence: Sequence, output: StepOutput, stop: StopCheck, table: str, decode_steps: int
) -> Output:
    """Return what a step under a table added to a request, and whether that ends it.

    `decode_steps` is 0 after prefill, else 1.
    """
    request, kept, logprobs = sequence.request, stop.kept, output.logprobs
    is_asked = request.sampling.prompt_logprobs is not None
    is_first = is_asked and sequence.output_tokens == kept
    return Output(
        request.request_id,
        output.token_ids[:kept],
        None if logprobs is None else logprobs[:kept],
        tuple(sequence.prompt_logprobs) if is_first else None,
        stop.reason,
        stop.stop_token_id,
        None,
        table,
        decode_steps,
        output.drafted,
        output.accepted,
    )
