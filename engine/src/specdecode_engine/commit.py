"""Where an emitted run ends: stops before caps, token by token, in order."""

from typing import NamedTuple

from specdecode_engine.request import FinishReason, Output, RequestStats
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission


class Ending(NamedTuple):
    """How many of the emitted tokens count, and why the sequence ends there, if it does."""

    kept: int
    reason: FinishReason | None = None
    stop_token_id: int | None = None


def cut_at_ending(
    token_ids: tuple[int, ...], sequence: Sequence, eos_token_ids: frozenset[int]
) -> Ending:
    """Find the first token at which the sequence stops or reaches its limit.

    An answer under a grammar cannot go on behind EOS, whatever its parameters say.
    """
    sampling = sequence.request.sampling
    ends = not sampling.ignore_eos or sequence.request.grammar is not None
    room = sequence.total_limit - len(sequence.tokens)
    is_free = sampling.stop_token_ids.isdisjoint(token_ids)
    if is_free and room > len(token_ids) and not (ends and not eos_token_ids.isdisjoint(token_ids)):
        return Ending(len(token_ids))  # nearly always
    stops = sampling.stop_token_ids | eos_token_ids if ends else sampling.stop_token_ids
    if room == 0:
        return Ending(0, FinishReason.LENGTH)
    for index, token in enumerate(token_ids):
        if token in stops:
            return Ending(index + 1, FinishReason.STOP, token)
        if index + 1 == room:
            return Ending(index + 1, FinishReason.LENGTH)
    return Ending(len(token_ids))


def add_emission(
    stats: RequestStats, emission: Emission, emitted: int, rounds: int
) -> RequestStats:
    """Count an emission of which `emitted` tokens were kept; `rounds` is 0 for a prompt's end."""
    return RequestStats(
        rounds=stats.rounds + rounds,
        drafted=stats.drafted + emission.drafted,
        accepted=stats.accepted + emission.accepted,
        emitted=stats.emitted + emitted * rounds,
    )


def output_of(sequence: Sequence, emission: Emission, ending: Ending, table: str) -> Output:
    """Say what a round under a table added to a request, and whether that ends it."""
    request, logprobs = sequence.request, emission.logprobs
    has_prompt = request.sampling.prompt_logprobs is not None
    is_first = sequence.output_tokens == ending.kept
    return Output(
        request_id=request.request_id,
        token_ids=emission.token_ids[: ending.kept],
        logprobs=None if logprobs is None else logprobs[: ending.kept],
        prompt_logprobs=tuple(sequence.prompt_logprobs) if has_prompt and is_first else None,
        finish_reason=ending.reason,
        stop_token_id=ending.stop_token_id,
        stats=sequence.stats,
        table=table,
    )
