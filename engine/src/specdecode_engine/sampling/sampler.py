"""Logits to tokens by the position-keyed rule, for drafted and plain rows alike."""

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.grammar import Grammar
from specdecode_engine.sampling.grammar_masks import DraftOnHost, GrammarMasks, GrammarRows
from specdecode_engine.sampling.penalties import Penalties
from specdecode_engine.sampling.token_rules import RuleRows, TokenRules, TokensAt
from specdecode_kernels import TORCH, Backend, PenaltyParamsBatch, SamplingParamsBatch

_Numbers = tuple[float, float, float, int, int]
"""Temperature, top_p, min_p, top_k and seed of a request."""

_GREEDY: _Numbers = (0.0, 1.0, 0.0, 0, 0)

NO_TOKEN = -1
"""What `sample` returns for a row whose request allows no token, as rules contradict each other."""


class SamplingBatch(NamedTuple):
    """How the requests of a batch sample in one step; None is what no request of it needs."""

    req_indices: tuple[int, ...]
    params: SamplingParamsBatch | None = None
    draft_params: SamplingParamsBatch | None = None  # the same without filters
    sampled_rows: Tensor | None = None  # [R] i64, rows of the batch that sample
    penalties: PenaltyParamsBatch | None = None
    rules: RuleRows | None = None
    grammar: GrammarRows | None = None

    @property
    def needs_positions(self) -> bool:
        """Whether tokens depend on their positions; they do not where every request is greedy."""
        return self.params is not None or self.rules is not None

    @property
    def is_restricted(self) -> bool:
        """Whether a request forbids tokens, so that `sample` may return `NO_TOKEN`."""
        return any(each is not None for each in (self.penalties, self.rules, self.grammar))


class Sampler:
    """The sampling state of every running request and the rule that turns logits into tokens.

    Penalties, bias, token rules, grammar, temperature, filters, noise: in this order, at every node
    alike. The host knows which requests need what, so that a batch without them skips it and
    nothing waits for the device.
    """

    def __init__(
        self,
        vocab: int,
        staging: StagingBuffer,
        ops: Backend = TORCH,
        tokens_at: TokensAt | None = None,
    ) -> None:
        self.ops = ops
        self.grammars = GrammarMasks(vocab, staging)
        self._staging = staging
        self._sampled: dict[int, _Numbers] = {}  # by request
        self._filtered: set[int] = set()
        self._filtered_twice: set[int] = set()  # by top_k and top_p
        self._penalties = Penalties(vocab, staging, ops)
        self._rules = TokenRules(vocab, staging, tokens_at)

    def open(
        self,
        req_index: int,
        params: SamplingParams,
        prompt: list[int],
        output: list[int],
        grammar: Grammar | None = None,
        ending_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Start a sequence; `ending_ids` are the tokens that end its output."""
        self.close(req_index)
        self._write(req_index, params)
        if _has_penalties(params):
            self._penalties.open(req_index, params, prompt, output)
        self._rules.open(req_index, params, len(prompt), ending_ids)
        if grammar is not None:
            self.grammars.open(req_index, grammar, output, ends_late=params.ignore_eos)

    def _write(self, req_index: int, params: SamplingParams) -> None:
        self._sampled.pop(req_index, None)
        self._filtered.discard(req_index)
        self._filtered_twice.discard(req_index)
        if params.temperature > 0:
            filters = params.top_p, params.min_p, params.top_k
            self._sampled[req_index] = (params.temperature, *filters, _signed(params.seed))
            if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
                self._filtered.add(req_index)
            if params.top_k > 0 and params.top_p < 1:
                self._filtered_twice.add(req_index)

    def stage(self, req_indices: Items[int]) -> SamplingBatch:
        """Stage what the device has to know of a batch, after its requests were opened."""
        params = self._stage_params(req_indices)
        rows = None
        if params is not None:
            rows = [row for row, index in enumerate(req_indices) if index in self._sampled]
        is_filtered = params is not None and params.is_filtered
        return SamplingBatch(
            req_indices=tuple(req_indices),
            params=params,
            draft_params=replace(params, is_filtered=False) if params and is_filtered else params,
            sampled_rows=None if rows is None else self._staging.put(rows),
            penalties=self._penalties.stage(req_indices),
            rules=self._rules.stage(req_indices),
            grammar=self.grammars.stage(req_indices),
        )

    def _stage_params(self, req_indices: Items[int]) -> SamplingParamsBatch | None:
        if not any(req_index in self._sampled for req_index in req_indices):
            return None
        numbers = [self._sampled.get(req_index, _GREEDY) for req_index in req_indices]
        temperature, top_p, min_p, top_k, seeds = zip(*numbers, strict=True)
        floats = self._staging.put_floats((*temperature, *top_p, *min_p)).view(3, -1)
        integers = self._staging.put((*top_k, *seeds)).view(2, -1)
        return SamplingParamsBatch(
            temperature=floats[0],
            top_k=integers[0],
            top_p=floats[1],
            min_p=floats[2],
            seeds=integers[1],
            is_filtered=not self._filtered.isdisjoint(req_indices),
            has_top_k_and_top_p=not self._filtered_twice.isdisjoint(req_indices),
        )

    def commit(self, batch: SamplingBatch, tokens: Tensor, accepted: Tensor) -> None:
        """Count tokens [batch, n] i64 appended to outputs, the first accepted + 1 of each.

        Args:
            accepted: [batch] i64.
        """
        if batch.penalties is not None:
            self._penalties.commit(batch.req_indices, tokens, accepted + 1)

    def close(self, req_index: int) -> None:
        """Free what a request's penalties, rules and grammar use."""
        self._rules.close(req_index)
        if req_index in self._penalties.states:
            self._penalties.close(req_index)
        if req_index in self.grammars.states:
            self.grammars.close(req_index)

    def sample(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Tensor,
        draft: Draft | None = None,
        on_host: DraftOnHost | None = None,
    ) -> Tensor:
        """Sample the token of every node by the target's rule.

        Args:
            logits: [batch, nodes, vocab] float, the target's, unprocessed.
            batch: what was staged for its requests, and sent.
            positions: [batch, nodes] i64, absolute positions of the tokens to be chosen.
            draft: the drafted tokens of the nodes after the first one.
            on_host: what `grammars.ship` returned for the draft.

        Returns:
            [batch, nodes] i64; `NO_TOKEN` where no token is allowed, which equals no drafted token.
        """
        if batch.penalties is not None:
            logits = self._penalties.apply(logits, batch.penalties, draft)
        if batch.rules is not None:
            logits = self._rules.apply(logits, batch.rules, positions, draft)
        if batch.grammar is not None:
            logits = self.grammars.apply(logits, batch.grammar, on_host)
        tokens = self.ops.sample(logits, batch.params, positions, None)
        if not batch.is_restricted:
            return tokens
        # Noise is finite and filters keep the likeliest token: a forbidden one wins no other row.
        is_forbidden = logits.gather(-1, tokens[..., None])[..., 0] == -torch.inf
        return tokens.masked_fill(is_forbidden, NO_TOKEN)

    def sample_draft(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Tensor,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        """Sample a draft token per row with the request's temperature and the same noise.

        Sharing the noise makes a draft that resembles the target choose the target's token also
        at temperature > 0. Filters and penalties are left out: they cost more than they gain here.

        Args:
            logits: [batch, draft_vocab] float, the draft's.
            positions: [batch] i64.
            target_ids: [draft_vocab] i64, the target's id of every draft id, where they differ; or
                [batch, 1, draft_vocab], of every row.

        Returns:
            [batch] i64 ids of the draft.
        """
        rows = logits.unsqueeze(1), batch, positions.unsqueeze(1), target_ids
        return self.sample_block(*rows).squeeze(1)

    def sample_block(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Tensor,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        """As `sample_draft`, of several positions at once: logits [batch, n, draft_vocab] float.

        Args:
            positions: [batch, n] i64.

        Returns:
            [batch, n] i64 ids of the draft.
        """
        if target_ids is None or target_ids.dim() == 1:
            return self.ops.sample(logits, batch.draft_params, positions, target_ids)
        return self._perturbed(logits, batch, positions, target_ids).argmax(dim=-1)

    def score_draft(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        positions: Tensor,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        """Score draft tokens as children of a tree's nodes.

        Where a request samples, the logits are perturbed with the request's noise first: the
        softmax of the perturbed ones grows with the chance that the target chooses the token.

        Args:
            logits: [batch, nodes, draft_vocab] float, the draft's.
            positions: [batch, nodes] i64.

        Returns:
            [batch, nodes, draft_vocab] f32 log-probabilities.
        """
        perturbed = self._perturbed(logits, batch, positions, target_ids)
        return torch.log_softmax(perturbed.float(), dim=-1)

    def draft_confidence(
        self, logits: Tensor, batch: SamplingBatch, positions: Tensor, target_ids: Tensor | None
    ) -> Tensor:
        """Return the score [batch] f32, see `score_draft`, of what `sample_draft` returns.

        A row of NaN scores minus infinity.
        """
        return self.block_confidence(logits[:, None], batch, positions[:, None], target_ids)[:, 0]

    def block_confidence(
        self, logits: Tensor, batch: SamplingBatch, positions: Tensor, target_ids: Tensor | None
    ) -> Tensor:
        """As `draft_confidence`, of what `sample_block` returns: [batch, n] f32."""
        perturbed = self._perturbed(logits, batch, positions, target_ids).float()
        return torch.nan_to_num(perturbed.amax(-1) - perturbed.logsumexp(-1), nan=-torch.inf)

    def _perturbed(
        self, logits: Tensor, batch: SamplingBatch, positions: Tensor, target_ids: Tensor | None
    ) -> Tensor:
        """Return logits with temperature and noise where a request samples."""
        params, rows = batch.draft_params, batch.sampled_rows
        if params is None or rows is None:
            return logits
        perturbed = self.ops.perturb_logits(logits, params, positions, target_ids, rows)
        return logits.index_copy(0, rows, perturbed)


def no_token_error(position: int) -> str:
    """Return the error of a request that got `NO_TOKEN` at a position of prompt and answer."""
    return (
        f"no token is allowed at position {position} of prompt and answer: allowed_token_ids, "
        "bad_words, min_tokens and the grammar forbid all that the model has; allow more tokens"
    )


def _signed(seed: int) -> int:
    """Fold any integer into the 64 bits of a signed tensor element."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _has_penalties(params: SamplingParams) -> bool:
    """Whether a request's logits depend on its tokens or on a bias."""
    has_bias = bool(params.logit_bias) or params.allowed_token_ids is not None
    has_penalty = params.presence_penalty or params.frequency_penalty
    return has_bias or bool(has_penalty) or params.repetition_penalty != 1
