"""A step that was launched, and whose result the host has not read yet."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.adaptive.policy import Decision
from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.request import ExpertIds, TokenLogprobs
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.sampling.sampler import NO_TOKEN
from specdecode_engine.steps.logprobs import LogprobRows, ScoredPrompt
from specdecode_engine.steps.routed_experts import RoutedRows
from specdecode_engine.steps.timing import Timing


class StepResult(NamedTuple):
    """What a step brought each sequence, before stops and limits are checked, in columns."""

    sequences: Items[Sequence] = ()
    token_ids: Items[tuple[int, ...]] = ()  # all but the last are accepted draft tokens
    num_verify_rows: Items[int] = ()  # nodes that the target verified, root included
    drafted: Items[int] = ()  # the fields of `Drafted`
    depths: Items[int] = ()
    is_ngram: Items[bool] = ()
    logprobs: Items[tuple[TokenLogprobs, ...] | None] = ()
    experts: Items[ExpertIds | None] = ()  # of the prompt, or of the token before each token


class Drafted(NamedTuple):
    """The number of tokens drafted for a sequence, the depth of the draft, and its source."""

    tokens: int
    depth: int
    is_ngram: bool = False


@dataclass(slots=True)
class InFlightStep:
    """The prefill or the decode part of a step: why it was launched, and its result once sent.

    A result is valid for the sequences as they were at launch: the part of a sequence that ended
    since is dropped. No sequence is preempted before its steps are collected.
    """

    timing: Timing
    table: str  # hash of the speculation table in force at launch
    share: float  # of the forward's time; 1 where the part had the forward to itself
    decision: Decision | None = None  # None for the prefill part
    kv_tokens: int = 0  # of the decode batch at launch
    prompt_tokens: int = 0  # of the prefill chunks
    prompt_context: int = 0  # tokens before them; see `SchedulerOutput`
    decoding: int = 0  # requests that decode in the forward of the prefill chunks
    num_steps: int = 0  # draft steps of these requests
    feeds_draft: bool = True  # of the prefill chunks; see `SchedulerOutput`
    # nodes that each of `sequences` verifies, root included; the most where the device decides
    num_verify_rows: tuple[int, ...] = ()
    sequences: tuple[Sequence, ...] = ()
    drafted: int = 0  # tokens of each sequence
    proposed: tuple[Drafted, ...] = ()  # instead, where each sequence has a draft of its own
    found: Proposals | None = None  # what NGRAM found for each sequence, next to a draft model
    draft_is_current: bool = False  # whether the draft model has computed the rows of its tokens
    leaves_out_draft: bool = False  # whether all sequences verify NGRAM's tokens instead of its own
    _most: tuple[int, ...] = ()  # tokens that each sequence can get
    _tokens: Tensor | None = None  # [B, path_length] i64, on the host
    _accepted: Tensor | None = None  # [B] i64, on the host
    _verified: Tensor | None = None  # [B] i64, on the host
    _logprobs: LogprobRows | None = None
    _routed: RoutedRows | None = None
    _scored: tuple[ScoredPrompt, ...] = ()
    _arrival: "torch.cuda.Event | None" = None

    @property
    def is_alone(self) -> bool:
        """Whether the part had the forward to itself, so that the time is its own."""
        return self.share == 1.0

    def send_tokens(
        self,
        sequences: tuple[Sequence, ...],
        tokens: Tensor,
        accepted: Tensor,
        drafted: int,
        logprobs: LogprobRows | None,
        routed: RoutedRows | None = None,
        proposed: tuple[Drafted, ...] = (),
        verified: Tensor | None = None,
    ) -> None:
        """Start the copy of the tokens to the host and note on the sequences what is in flight.

        Args:
            tokens: [B, width] i64.
            accepted: [B] i64; the first accepted + 1 tokens of each row count, of which only the
                last may be `NO_TOKEN`.
            drafted: tokens of each sequence.
            proposed: instead, where each sequence has a draft of its own.
            verified: [B or more] i64, drafted tokens that each sequence verifies, where the device
                decides.
        """
        counts, width = self.num_verify_rows or (1,) * len(sequences), tokens.shape[1]
        self._most = tuple([count if count < width else width for count in counts])
        for sequence, most in zip(sequences, self._most, strict=True):
            sequence.in_flight_tokens += most
            sequence.in_flight_steps += 1
        self.sequences, self.drafted, self.proposed = sequences, drafted, proposed
        self._tokens, self._accepted = _start_copy(tokens), _start_copy(accepted)
        self._verified = None if verified is None else _start_copy(verified)
        self._logprobs = logprobs.map(_start_copy) if logprobs else None
        self._routed = routed.map(_start_copy) if routed else None
        self._record_arrival(tokens)

    def send_prompt_logprobs(self, scored: tuple[ScoredPrompt, ...]) -> None:
        """Start the copy of prompt logprobs to the host."""
        if scored:
            self._scored = tuple(prompt.map(_start_copy) for prompt in scored)
            self._record_arrival(scored[0].scores.values)

    def _record_arrival(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record()

    def received(self) -> dict[int, tuple[int, ...]]:
        """Wait for the tokens and return them by request index; they stay to be collected.

        A request without a next token, which ends when that is collected, is left out.
        """
        if self._tokens is None:
            return {}
        if self._arrival is not None:
            self._arrival.synchronize()
        return {
            sequence.req_index: token_ids
            for sequence, token_ids in zip(self.sequences, self._token_ids(), strict=True)
            if sequence.req_index is not None and token_ids[-1] != NO_TOKEN
        }

    def collect(self) -> StepResult:
        """Wait for the result and return that of the sequences that have not ended.

        Prompt logprobs are kept on their sequences, which return them with their first output.
        """
        if self._arrival is not None:
            self._arrival.synchronize()
        for prompt in self._scored:
            prompt.collect()
        if self._tokens is None:
            return StepResult()
        nothing = [None] * len(self.sequences)
        for sequence, most in zip(self.sequences, self._most, strict=True):
            sequence.in_flight_tokens -= most
            sequence.in_flight_steps -= 1
        result = StepResult(
            self.sequences,
            self._token_ids(),
            self._verify_rows(),
            *self._drafts(),
            self._logprobs.records() if self._logprobs else nothing,
            self._routed.records() if self._routed else nothing,
        )
        is_running = [sequence.finish_reason is None for sequence in self.sequences]
        if all(is_running):
            return result
        return StepResult._make(tuple(compress(column, is_running)) for column in result)

    def _token_ids(self) -> list[tuple[int, ...]]:
        """Read the accepted tokens and the bonus token of each sequence."""
        assert self._tokens is not None
        assert self._accepted is not None
        columns = self._tokens.tolist(), self._accepted.tolist()
        return [tuple(row[: count + 1]) for row, count in zip(*columns, strict=True)]

    def _verify_rows(self) -> Items[int]:
        if self._verified is not None:
            return [1 + count for count in self._verified.tolist()[: len(self.sequences)]]
        return self.num_verify_rows or (1,) * len(self.sequences)

    def _drafts(self) -> tuple[Items[int], Items[int], Items[bool]]:
        """Return the fields of `Drafted`, each of all sequences."""
        if self.proposed:
            tokens, depths, is_ngram = zip(*self.proposed, strict=True)
            return tokens, depths, is_ngram
        depth = self.decision.num_steps if self.decision is not None and self.drafted else 0
        count = len(self.sequences)
        return (self.drafted,) * count, (depth,) * count, (False,) * count


def _start_copy(tensor: Tensor) -> Tensor:
    """Start a copy to pinned memory that does not block the host; CPU tensors are returned.

    The copy is complete when an event that was recorded after it has been reached.
    """
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
