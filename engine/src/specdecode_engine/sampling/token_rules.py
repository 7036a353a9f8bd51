"""Tokens that a request forbids at some positions of its output, as masks on the device.

`min_tokens` forbids the tokens that end the output at its first positions, `bad_words` the last
token of a word wherever the tokens before it are there. A rule depends on positions and on the
tokens of the path to a node, so that drafted and plain rows agree, and nothing waits for the
device. Letters: B batch, N nodes, K rules of the whole batch, P tokens before the forbidden one.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.batch.staging import StagingBuffer

TokensAt = Callable[[Tensor, Tensor], Tensor]
"""Committed tokens of requests [B, 1] i64 at positions [B, N] i64, as `RequestTable.tokens_at`."""

_ALWAYS = 2**62  # a position after every token
_ANY, _OUTSIDE = -1, -2  # in a rule: any token; in a context: a place before the output
_TOKEN, _UNTIL, _START, _BEFORE = range(4)
"""Columns of a rule: the forbidden token, the first position where it is allowed again, the first
position of the output, and the tokens before the forbidden one, the nearest first."""


@dataclass(frozen=True, slots=True, eq=False)
class RuleRows:
    """The rules of a batch."""

    rules: tuple[Tensor, ...]  # [rules, 3 + P] i64 of each request that has any
    rows: Tensor  # [K] i64, rows of the batch
    req_indices: Tensor  # [B, 1] i64


class TokenRules:
    """The rules of the requests that have any; `states` maps requests to them.

    Args:
        vocab: width of the logits; a token beyond it is never generated and needs no rule.
        tokens_at: reads committed tokens; needed for rules that depend on earlier tokens.
    """

    def __init__(self, vocab: int, staging: StagingBuffer, tokens_at: TokensAt | None) -> None:
        self._vocab = vocab
        self._staging = staging
        self._tokens_at = tokens_at
        self.states: dict[int, Tensor] = {}

    def open(
        self, req_index: int, params: SamplingParams, prompt_tokens: int, ending: frozenset[int]
    ) -> None:
        """Start a request; `ending` are the tokens that end its output."""
        allowed_from = prompt_tokens + params.min_tokens
        found: list[tuple[int, int, tuple[int, ...]]]
        found = [(token, allowed_from, ()) for token in sorted(ending) if params.min_tokens]
        found += [(word[-1], _ALWAYS, word[-2::-1]) for word in params.bad_words]
        found = [rule for rule in found if rule[0] < self._vocab]
        if not found:
            return
        width = max(len(before) for _, _, before in found)
        numbers: list[int] = []
        for token, until, before in found:
            numbers += (token, until, prompt_tokens, *before, *[_ANY] * (width - len(before)))
        staged = self._staging.put(numbers).view(len(found), -1)
        own = self.states[req_index] = torch.empty_like(staged)
        self._staging.after_send(lambda: own.copy_(staged))

    def close(self, req_index: int) -> None:
        """Free a request, which may have no rules."""
        self.states.pop(req_index, None)

    def stage(self, req_indices: Items[int]) -> RuleRows | None:
        """Stage the rules of a batch; None where no request has any."""
        if self.states.keys().isdisjoint(req_indices):
            return None
        rows: list[int] = []
        rules: list[Tensor] = []
        for row, req_index in enumerate(req_indices):
            if (own := self.states.get(req_index)) is not None:
                rules.append(own)
                rows += [row] * len(own)
        put = self._staging.put
        return RuleRows(tuple(rules), put(rows), put(req_indices)[:, None])

    def apply(
        self, logits: Tensor, batch: RuleRows, positions: Tensor, draft: Draft | None
    ) -> Tensor:
        """Return logits [B, N, vocab] with the forbidden tokens at minus infinity.

        Args:
            positions: [B, N] i64, of the tokens to be chosen.
            draft: of the nodes after the first one.
        """
        width = max(rules.shape[1] for rules in batch.rules)
        padded = [
            functional.pad(each, (0, width - each.shape[1]), value=_ANY) for each in batch.rules
        ]
        rules = torch.cat(padded)
        forbidden = positions[batch.rows] < rules[:, _UNTIL, None]
        if width > _BEFORE:
            before = self._before(batch, positions, draft, width - _BEFORE)[batch.rows]
            places = (
                positions[batch.rows][..., None]
                - 1
                - torch.arange(width - _BEFORE, device=positions.device)
            )
            before = before.masked_fill(places < rules[:, _START, None, None], _OUTSIDE)
            wanted = rules[:, None, _BEFORE:]
            forbidden &= ((before == wanted) | (wanted == _ANY)).all(dim=-1)
        nodes = torch.arange(logits.shape[1], device=logits.device)
        places_of = (batch.rows[:, None], nodes[None], rules[:, _TOKEN, None])
        masked = torch.zeros_like(forbidden, dtype=logits.dtype).masked_fill(forbidden, -torch.inf)
        # Added, not written: rules of one token may differ, and the order of writes is not defined.
        return logits.index_put(places_of, masked, accumulate=True)

    def _before(
        self, batch: RuleRows, positions: Tensor, draft: Draft | None, count: int
    ) -> Tensor:
        """Return the tokens before each position, the nearest first: [B, N, count] i64.

        These are drafted ones as far as the path to the node reaches, then committed ones.
        """
        assert self._tokens_at is not None, "rules with several tokens need the tokens so far"
        nodes = torch.zeros_like(positions)
        parents = drafted = nodes
        if draft is not None:
            numbers = torch.arange(positions.shape[1], device=positions.device)
            nodes = numbers.expand_as(positions)
            chain = (numbers - 1).clamp(min=0).expand_as(positions)
            parents = chain if draft.tree is None else draft.tree.parents
            drafted = functional.pad(draft.tokens, (1, 0))
        found: list[Tensor] = []
        for distance in range(1, count + 1):
            places = (positions - distance).clamp(min=0)
            committed = self._tokens_at(batch.req_indices, places)
            found.append(torch.where(nodes > 0, drafted.gather(1, nodes), committed))
            nodes = parents.gather(1, nodes)
        return torch.stack(found, dim=-1)
