"""A decode round: draft, verify, commit; at depth 0 plain decoding."""

from torch import Tensor

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
    slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
    lengths = [sequence.most_computed for sequence in sequences]
    batch = parts.table.decode_batch(slots, lengths)
    draft = None
    if parts.drafter is not None and shape.num_steps > 0:
        draft = parts.drafter.propose(batch, shape)
    verdict = verify(parts, batch, draft)
    tokens = _commit(parts, batch, verdict)
    tops = [sequence.request.sampling.logprobs for sequence in sequences]
    logprobs = select_logprobs(take_path(verdict.logits, verdict.path), tokens, tops)
    drafted = shape.num_tokens - 1 if draft else 0
    return send_to_host(sequences, tokens, verdict.accepted, drafted, logprobs, True)


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
