"""A decode round: draft, verify, commit; at depth 0 plain decoding."""

from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.rounds.logprobs import select_logprobs
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.path import move_kv, take_path
from specdecode_engine.rounds.pending import PendingRound, send_to_host
from specdecode_engine.rounds.verify import Verdict, verify
from specdecode_engine.sequence import Sequence
from specdecode_engine.slots import DecodeBatch


def launch_decode_round(
    parts: Parts, sequences: tuple[Sequence, ...], shape: DraftShape
) -> PendingRound:
    """Launch one round for every sequence; each gets 1 to path_length tokens."""
    batch = gather(parts, sequences)
    draft = propose(parts, batch, shape)
    return take_up_verdict(parts, sequences, batch, draft, verify(parts, batch, draft))


def gather(parts: Parts, sequences: tuple[Sequence, ...]) -> DecodeBatch:
    """Gather the state that a round starts from."""
    slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
    return parts.table.decode_batch(slots, [sequence.most_computed for sequence in sequences])


def propose(parts: Parts, batch: DecodeBatch, shape: DraftShape) -> Draft | None:
    """Draft, where the round has a depth."""
    if parts.drafter is None or not shape.num_steps:
        return None
    return parts.drafter.propose(batch, shape)


def take_up_verdict(
    parts: Parts,
    sequences: tuple[Sequence, ...],
    batch: DecodeBatch,
    draft: Draft | None,
    verdict: Verdict,
) -> PendingRound:
    """Commit the accepted paths and send their tokens to the host."""
    tokens = _commit(parts, batch, verdict)
    tops = [sequence.request.sampling.logprobs for sequence in sequences]
    logprobs = select_logprobs(take_path(verdict.logits, verdict.path), tokens, tops)
    drafted = draft.shape.num_tokens - 1 if draft else 0
    return send_to_host(sequences, tokens, verdict.accepted, drafted, logprobs)


def _commit(parts: Parts, batch: DecodeBatch, verdict: Verdict) -> Tensor:
    """Keep what belongs to the accepted path; return its tokens [B, path_length] i64."""
    tokens = take_path(verdict.tokens, verdict.path)
    if verdict.path is not None:
        move_kv(parts.pool, parts.table, batch, verdict.path)
    emitted = verdict.accepted + 1
    parts.table.append(batch, tokens, emitted)
    parts.sampler.commit(list(batch.slot_ids), tokens, emitted)
    if parts.drafter is not None:
        features = verdict.features
        kept = None if features is None else take_path(features, verdict.path)
        parts.drafter.observe(batch, tokens.shape[1], kept)
    return tokens
