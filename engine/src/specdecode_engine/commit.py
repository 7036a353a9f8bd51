"""Where an emitted run ends: stops before caps, token by token, in order."""

from typing import NamedTuple

from specdecode_engine.request import FinishReason, Output, Request, RequestStats
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission


class Ending(NamedTuple):
    """How many of the emitted tokens count, and why the sequence ends there, if it does."""

    kept: int
    reason: FinishReason | None = None
    stop_token_id: int | None = None


def ending_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end an answer.

    One under a grammar cannot go on behind EOS, whatever its parameters say.
    """
    sampling = request.sampling
    ends = not sampling.ignore_eos or request.grammar is not None
    return sampling.stop_token_ids | eos_token_ids if ends else sampling.stop_token_ids


def cut_at_ending(token_ids: tuple[int, ...], sequence: Sequence) -> Ending:
    """Find the first token at which the sequence stops or reaches its limit."""
    room = sequence.total_limit - len(sequence.tokens)
    stops = sequence.ending_ids
    if room > len(token_ids) and stops.isdisjoint(token_ids):
        return Ending(len(token_ids))  # nearly always
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
        stats.rounds + rounds,
        stats.drafted + emission.drafted,
        stats.accepted + emission.accepted,
        stats.emitted + emitted * rounds,
    )


def output_of(sequence: Sequence, emission: Emission, ending: Ending, table: str) -> Output:
    """Say what a round under a table added to a request, and whether that ends it."""
    request, kept, logprobs = sequence.request, ending.kept, emission.logprobs
    is_asked = request.sampling.prompt_logprobs is not None
    is_first = is_asked and sequence.output_tokens == kept
    return Output(
        request.request_id,
        emission.token_ids[:kept],
        None if logprobs is None else logprobs[:kept],
        tuple(sequence.prompt_logprobs) if is_first else None,
        ending.reason,
        ending.stop_token_id,
        sequence.stats,
        None,
        table,
    )
