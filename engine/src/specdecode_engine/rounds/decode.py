"""A decode round: draft, verify, commit; at depth 0 plain decoding."""

import torch

from specdecode_engine.rounds.logprobs import gather_logprobs
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.verify import Verdict, verify
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission


def run_decode_round(
    parts: Parts, sequences: tuple[Sequence, ...], num_steps: int
) -> list[Emission]:
    """Decode one round for every sequence, each of which gets 1 to num_steps + 1 tokens."""
    slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
    lengths = [len(sequence.tokens) - 1 for sequence in sequences]
    batch = parts.table.decode_batch(slots, lengths)
    drafted = None
    if parts.drafter is not None and num_steps > 0:
        drafted = parts.drafter.propose(batch, num_steps)
    verdict = verify(parts, batch, drafted)
    parts.table.append(batch, verdict.tokens, verdict.accepted + 1)
    if parts.drafter is not None:
        parts.drafter.observe(batch, verdict.tokens.shape[1], verdict.features)
    return _tell_host(sequences, verdict)


def _tell_host(sequences: tuple[Sequence, ...], verdict: Verdict) -> list[Emission]:
    """Copy the verdict to the host, in one transfer, and cut it into emissions."""
    table = torch.cat([verdict.tokens, verdict.accepted[:, None]], dim=1).tolist()
    tops = [sequence.request.sampling.logprobs for sequence in sequences]
    logprobs = gather_logprobs(verdict.logits, verdict.tokens, tops)
    emissions = []
    for sequence, row, records in zip(sequences, table, logprobs, strict=True):
        accepted = row[-1]
        emitted = tuple(row[: accepted + 1])
        kept = None if records is None else records[: accepted + 1]
        emissions.append(Emission(sequence, emitted, len(row) - 2, accepted, kept))
    return emissions
