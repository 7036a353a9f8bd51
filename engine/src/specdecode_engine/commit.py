"""Where an emitted run ends: stops before caps, token by token, in order."""

from dataclasses import dataclass

from specdecode_engine.request import FinishReason
from specdecode_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Ending:
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
    stops = sampling.stop_token_ids
    if not sampling.ignore_eos or sequence.request.grammar is not None:
        stops = stops | eos_token_ids
    room = sequence.total_limit - len(sequence.tokens)
    if room == 0:
        return Ending(0, FinishReason.LENGTH)
    for index, token in enumerate(token_ids):
        if token in stops:
            return Ending(index + 1, FinishReason.STOP, token)
        if index + 1 == room:
            return Ending(index + 1, FinishReason.LENGTH)
    return Ending(len(token_ids))
