"""The state of every running request that penalties, logit bias and allowed tokens depend on."""

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_kernels import Backend, DraftedNodes, PenaltyParamsBatch


class Penalties:
    """State of the requests with penalties or a bias; `states` maps them to rows of the tables.

    The tables are as wide as the vocabulary. They grow when more requests at once need a row
    than ever before, and never shrink.
    """

    def __init__(self, vocab: int, staging: StagingBuffer, ops: Backend) -> None:
        self._ops = ops
        self._staging = staging
        self._params: dict[int, SamplingParams] = {}
        self.states: dict[int, int] = {}
        device = staging.device
        self._counts = torch.zeros(0, vocab, device=device)  # of output tokens
        self._in_prompt = torch.zeros(0, vocab, dtype=torch.bool, device=device)
        self._bias = torch.zeros(0, vocab, device=device)

    def open(
        self, req_index: int, params: SamplingParams, prompt: list[int], output: list[int]
    ) -> None:
        """Start a request that has no row, with the output that it already has."""
        state = self._free_row()
        self._params[req_index], self.states[req_index] = params, state
        put, allowed = self._staging.put, params.allowed_token_ids
        bias = dict(params.logit_bias)
        if allowed is not None:
            # Others have a bias of minus infinity, which no bias of their own may replace.
            bias = {token: bias.get(token, 0.0) for token in sorted(allowed)}
        in_prompt, in_output, biased = put(prompt), put(output), put(list(bias))
        values = self._staging.put_floats(list(bias.values()))

        def write() -> None:
            for table in (self._counts, self._in_prompt):
                table[state].zero_()
            self._bias[state].fill_(0.0 if allowed is None else -torch.inf)
            self._in_prompt[state].index_fill_(0, in_prompt, True)
            ones = self._counts.new_ones(len(in_output))
            self._counts[state].index_add_(0, in_output, ones)
            self._bias[state].index_copy_(0, biased, values.to(self._bias.dtype))

        self._staging.after_send(write)

    def commit(self, req_indices: Items[int], tokens: Tensor, emitted: Tensor) -> None:
        """Count tokens that were added to outputs.

        Args:
            tokens: [batch, n] i64.
            emitted: [batch] i64, how many of each row count.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        for row, req_index in enumerate(req_indices):
            if req_index in self.states:
                counts = self._counts[self.states[req_index]]
                counts.index_add_(0, tokens[row], (places < emitted[row]).to(counts.dtype))

    def close(self, req_index: int) -> None:
        """Free a request's row."""
        del self._params[req_index], self.states[req_index]

    def apply(self, logits: Tensor, params: PenaltyParamsBatch, draft: Draft | None) -> Tensor:
        """Return logits after penalties and bias.

        Args:
            logits: [batch, nodes, vocab] float; not changed.
            params: what was staged for the batch, and sent.
            draft: a node counts the drafted tokens on the path to it, its own included, as if
                they were output already.
        """
        drafted = None if draft is None else _nodes(draft)
        return self._ops.apply_penalties(logits, params, drafted)

    def stage(self, req_indices: Items[int]) -> PenaltyParamsBatch | None:
        """Stage the parameters of a batch; None where no request has any."""
        if self.states.keys().isdisjoint(req_indices):
            return None
        states = [self.states.get(req_index, -1) for req_index in req_indices]
        numbers = [n for req_index in req_indices for n in _numbers(self._params.get(req_index))]
        return PenaltyParamsBatch(
            counts=self._counts,
            in_prompt=self._in_prompt,
            bias=self._bias,
            states=self._staging.put(states),
            numbers=self._staging.put_floats(numbers).view(-1, 3),
        )

    def _free_row(self) -> int:
        """A row of the tables that no request has, made if there is none."""
        have = self._counts.shape[0]
        free = set(range(have)).difference(self.states.values())
        if free:
            return min(free)
        more = max(have, 1)
        # All or none: the device may be out of memory, and the step is then tried again.
        grown = [_grown(table, more) for table in (self._counts, self._in_prompt, self._bias)]
        self._counts, self._in_prompt, self._bias = grown
        return have


def _grown(table: Tensor, rows: int) -> Tensor:
    return torch.cat([table, table.new_zeros(rows, table.shape[1])])


def _numbers(params: SamplingParams | None) -> tuple[float, float, float]:
    if params is None:
        return 1.0, 0.0, 0.0
    return params.repetition_penalty, params.presence_penalty, params.frequency_penalty


def _nodes(draft: Draft) -> DraftedNodes:
    parents = None if draft.tree is None else draft.tree.parents
    return DraftedNodes(draft.tokens, parents, draft.shape.num_steps)
