"""A round that was launched and whose result the host has not looked at yet."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.rounds.host_copy import start_copy
from specdecode_engine.rounds.logprobs import LogprobRows
from specdecode_engine.rounds.prompt_logprobs import ScoredPrompt
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission


@dataclass(frozen=True, slots=True)
class PendingRound:
    """Tokens of one round on their way to the host, with what they were computed under.

    A result is only good for the sequences as they were: one that ended since has a finish reason,
    and its part of the result is dropped. None is retracted before its rounds are collected.
    """

    sequences: tuple[Sequence, ...]
    drafted: int  # tokens drafted per sequence
    width: int  # most tokens that a sequence can get
    table: Tensor  # [B, width + 1] i64, pinned or on the CPU: tokens, then how many were accepted
    arrival: "torch.cuda.Event | None"
    logprobs: LogprobRows | None
    scored: tuple[ScoredPrompt, ...]

    def collect(self) -> list[Emission]:
        """Wait for the result and cut it into emissions of sequences that still want them.

        Scores of prompts go to their sequences, which tell them with their first tokens.
        """
        if self.arrival is not None:
            self.arrival.synchronize()
        for prompt in self.scored:
            prompt.collect()
        records = self.logprobs.records() if self.logprobs else [None] * len(self.sequences)
        emissions = []
        for sequence, row, kept in zip(self.sequences, self.table.tolist(), records, strict=True):
            sequence.in_flight_tokens -= self.width
            sequence.in_flight_rounds -= 1
            if sequence.finish_reason is not None:
                continue
            count = row[-1] + 1
            tokens = tuple(row[:count])
            shown = None if kept is None else kept[:count]
            emissions.append(Emission(sequence, tokens, self.drafted, row[-1], shown))
        return emissions


def send_to_host(
    sequences: tuple[Sequence, ...],
    tokens: Tensor,
    accepted: Tensor,
    drafted: int,
    logprobs: LogprobRows | None,
    scored: tuple[ScoredPrompt, ...] = (),
) -> PendingRound:
    """Start the copy of a round's result and note on the sequences what is in flight.

    Args:
        tokens: [B, width] i64.
        accepted: [B] i64; the first accepted + 1 tokens of each row count.
    """
    width = tokens.shape[1]
    for sequence in sequences:
        sequence.in_flight_tokens += width
        sequence.in_flight_rounds += 1
    table = start_copy(torch.cat([tokens, accepted[:, None]], dim=1))
    logprobs = logprobs.sent() if logprobs else None
    scored = tuple(prompt.sent() for prompt in scored)
    arrival = None
    if tokens.is_cuda:
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
    return PendingRound(sequences, drafted, width, table, arrival, logprobs, scored)


def send_prompts_to_host(scored: tuple[ScoredPrompt, ...], device: torch.device) -> PendingRound:
    """Start the copy of an extend round's scores where no prompt ends, so that no token comes."""
    none = torch.empty(0, 1, dtype=torch.int64, device=device)
    return send_to_host((), none, none[:, 0], 0, None, scored)
