"""A decode round: draft, verify, commit; at depth 0 plain decoding."""

import torch
from torch import Tensor

from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.rounds.logprobs import gather_logprobs
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.path import move_kv, take_path
from specdecode_engine.rounds.verify import Verdict, verify
from specdecode_engine.sequence import Sequence
from specdecode_engine.slots import DecodeBatch
from specdecode_engine.step import Emission


def run_decode_round(
    parts: Parts, sequences: tuple[Sequence, ...], shape: DraftShape
) -> list[Emission]:
    """Decode one round for every sequence; each gets 1 to path_length tokens."""
    slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
    lengths = [len(sequence.tokens) - 1 for sequence in sequences]
    batch = parts.table.decode_batch(slots, lengths)
    draft = None
    if parts.drafter is not None and shape.num_steps > 0:
        draft = parts.drafter.propose(batch, shape)
    verdict = verify(parts, batch, draft)
    tokens = _commit(parts, batch, verdict)
    return _tell_host(sequences, verdict, tokens, shape.num_tokens - 1 if draft else 0)


def _commit(parts: Parts, batch: DecodeBatch, verdict: Verdict) -> Tensor:
    """Keep what belongs to the accepted path; return its tokens [B, path_length] i64."""
    tokens = take_path(verdict.tokens, verdict.path)
    if verdict.path is not None:
        move_kv(parts.pool, parts.table, batch, verdict.path)
    parts.table.append(batch, tokens, verdict.accepted + 1)
    if parts.drafter is not None:
        features = verdict.features
        kept = None if features is None else take_path(features, verdict.path)
        parts.drafter.observe(batch, tokens.shape[1], kept)
    return tokens


def _tell_host(
    sequences: tuple[Sequence, ...], verdict: Verdict, tokens: Tensor, drafted: int
) -> list[Emission]:
    """Copy the verdict to the host, in one transfer, and cut it into emissions."""
    table = torch.cat([tokens, verdict.accepted[:, None]], dim=1).tolist()
    tops = [sequence.request.sampling.logprobs for sequence in sequences]
    logprobs = gather_logprobs(take_path(verdict.logits, verdict.path), tokens, tops)
    emissions = []
    for sequence, row, records in zip(sequences, table, logprobs, strict=True):
        accepted = row[-1]
        emitted = tuple(row[: accepted + 1])
        kept = None if records is None else records[: accepted + 1]
        emissions.append(Emission(sequence, emitted, drafted, accepted, kept))
    return emissions
