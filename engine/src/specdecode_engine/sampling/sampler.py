"""Logits to tokens by the position-keyed rule, for drafted and plain rows alike."""

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.grammar import Grammar
from specdecode_engine.sampling.grammar_masks import DraftOnHost, GrammarMasks
from specdecode_engine.sampling.penalties import Penalties
from specdecode_kernels import TORCH, Backend, SamplingParamsBatch


class Sampler:
    """The sampling state of every running request and the rule that turns logits into tokens.

    Penalties, bias, grammar, temperature, filters, noise: in this order, at every node alike. The
    host knows which requests need what, so that a batch without them skips it and nothing waits for
    the device.
    """

    def __init__(
        self, num_rows: int, vocab: int, device: torch.device, ops: Backend = TORCH
    ) -> None:
        self.ops = ops
        self.grammars = GrammarMasks(vocab, device)
        self._numbers = torch.zeros(num_rows, 4, dtype=torch.float64, device=device)
        self._seeds = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._sampled: set[int] = set()
        self._filtered: set[int] = set()
        self._penalties = Penalties(vocab, device, ops)

    def open(
        self,
        req_index: int,
        params: SamplingParams,
        prompt: list[int],
        output: list[int],
        grammar: Grammar | None = None,
    ) -> None:
        """Start a sequence."""
        self.close(req_index)
        self._write(req_index, params)
        if _has_penalties(params):
            self._penalties.open(req_index, params, prompt, output)
        if grammar is not None:
            self.grammars.open(req_index, grammar, output, ends_late=params.ignore_eos)

    def _write(self, req_index: int, params: SamplingParams) -> None:
        numbers = (params.temperature, params.top_p, float(params.top_k), params.min_p)
        self._numbers[req_index] = torch.tensor(numbers, dtype=torch.float64)
        self._seeds[req_index] = _signed(params.seed)
        self._sampled.discard(req_index)
        self._filtered.discard(req_index)
        if params.temperature > 0:
            self._sampled.add(req_index)
            if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
                self._filtered.add(req_index)

    def commit(self, req_indices: list[int], tokens: Tensor, emitted: Tensor) -> None:
        """Count tokens [batch, n] i64 appended to outputs, the first `emitted` [batch] of each."""
        if self._penalties.states:
            self._penalties.commit(req_indices, tokens, emitted)

    def close(self, req_index: int) -> None:
        """Free what a request's penalties and grammar use."""
        if req_index in self._penalties.states:
            self._penalties.close(req_index)
        if req_index in self.grammars.states:
            self.grammars.close(req_index)

    def sample(
        self,
        logits: Tensor,
        req_indices: list[int],
        positions: Tensor,
        draft: Draft | None = None,
        on_host: DraftOnHost | None = None,
    ) -> Tensor:
        """Sample the token of every node by the target's rule.

        Args:
            logits: [batch, nodes, vocab] float, the target's, unprocessed.
            req_indices: the request of each batch row.
            positions: [batch, nodes] i64, absolute positions of the tokens to be chosen.
            draft: the drafted tokens of the nodes after the first one.
            on_host: what `grammars.ship` returned for the draft.

        Returns:
            [batch, nodes] i64.
        """
        if self._penalties.states:
            logits = self._penalties.apply(logits, req_indices, draft)
        if self.grammars.states:
            logits = self.grammars.apply(logits, req_indices, on_host)
        params = self._params_of(req_indices, with_filters=True)
        return self.ops.sample(logits, params, positions, None)

    def sample_draft(
        self,
        logits: Tensor,
        req_indices: list[int],
        positions: Tensor,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        """Sample a draft token per row with the request's temperature and the same noise.

        Sharing the noise makes a draft that resembles the target choose the target's token also
        at temperature > 0. Filters and penalties are left out: they cost more than they gain here.

        Args:
            logits: [batch, draft_vocab] float, the draft's.
            positions: [batch] i64.
            target_ids: [draft_vocab] i64, the target's id of every draft id, where they differ.

        Returns:
            [batch] i64 ids of the target.
        """
        rows = self._params_of(req_indices, with_filters=False)
        ids = self.ops.sample(logits[:, None], rows, positions[:, None], target_ids)[:, 0]
        return ids if target_ids is None else target_ids[ids]

    def score_draft(
        self,
        logits: Tensor,
        req_indices: list[int],
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
        rows = self._params_of(req_indices, with_filters=False)
        if rows is not None:
            sampled = [
                row for row, req_index in enumerate(req_indices) if req_index in self._sampled
            ]
            chosen = torch.tensor(sampled, device=logits.device)
            perturbed = self.ops.perturb_logits(logits, rows, positions, target_ids, chosen)
            logits = logits.index_copy(0, chosen, perturbed)
        return torch.log_softmax(logits.float(), dim=-1)

    def _params_of(
        self, req_indices: list[int], *, with_filters: bool
    ) -> SamplingParamsBatch | None:
        """Gather the parameters of a batch; None where every request is greedy."""
        if not any(req_index in self._sampled for req_index in req_indices):
            return None
        places = torch.tensor(req_indices, device=self._seeds.device)
        numbers = self._numbers[places]
        return SamplingParamsBatch(
            temperature=numbers[:, 0],
            top_k=numbers[:, 2].to(torch.int64),
            top_p=numbers[:, 1],
            min_p=numbers[:, 3],
            seeds=self._seeds[places],
            is_filtered=with_filters
            and any(req_index in self._filtered for req_index in req_indices),
        )


def _signed(seed: int) -> int:
    """Fold any integer into the 64 bits of a signed tensor element."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _has_penalties(params: SamplingParams) -> bool:
    """Whether a request's logits depend on its tokens or on a bias."""
    return params.repetition_penalty != 1 or bool(
        params.presence_penalty or params.frequency_penalty or params.logit_bias
    )
