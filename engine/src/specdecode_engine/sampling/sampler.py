"""Logits to tokens by the position-keyed rule, for drafted and plain rows alike."""

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.grammar import Grammar
from specdecode_engine.sampling.grammar_masks import DraftOnHost, GrammarMasks
from specdecode_engine.sampling.penalties import Penalties
from specdecode_engine.sampling.table import SamplingTable
from specdecode_kernels import TORCH, Backend


class Sampler:
    """The sampling state of every slot and the rule that turns logits into tokens.

    Penalties, bias, grammar, temperature, filters, noise: in this order, at every node alike.
    """

    def __init__(self, slots: int, vocab: int, device: torch.device, ops: Backend = TORCH) -> None:
        self.ops = ops
        self.grammars = GrammarMasks(vocab, device)
        self._table = SamplingTable(slots, device)
        self._penalties = Penalties(vocab, device, ops)

    def open(
        self,
        slot: int,
        params: SamplingParams,
        prompt: list[int],
        output: list[int],
        grammar: Grammar | None = None,
    ) -> None:
        """Take up a sequence that has just been given a slot."""
        self._table.write(slot, params)
        self._penalties.open(slot, params, prompt, output)
        self.grammars.open(slot, grammar, output, ends_late=params.ignore_eos)

    def commit(self, slots: list[int], tokens: Tensor, emitted: Tensor) -> None:
        """Count tokens [batch, n] i64 appended to outputs, the first `emitted` [batch] of each."""
        self._penalties.commit(slots, tokens, emitted)

    def close(self, slot: int) -> None:
        """Let go of a slot."""
        self._penalties.close(slot)
        self.grammars.close(slot)

    def sample(
        self,
        logits: Tensor,
        slots: list[int],
        positions: Tensor,
        draft: Draft | None = None,
        on_host: DraftOnHost | None = None,
    ) -> Tensor:
        """Sample the token of every node by the target's rule.

        Args:
            logits: [batch, nodes, vocab] float, the target's, unprocessed.
            slots: the slot of each batch row.
            positions: [batch, nodes] i64, absolute positions of the tokens to be chosen.
            draft: the drafted tokens of the nodes after the first one.
            on_host: what `grammars.ship` returned for the draft.

        Returns:
            [batch, nodes] i64.
        """
        processed = self._penalties.apply(logits, slots, draft)
        processed = self.grammars.apply(processed, slots, on_host)
        params = self._table.rows(slots, with_filters=True)
        return self.ops.sample(processed, params, positions, None)

    def sample_draft(
        self,
        logits: Tensor,
        slots: list[int],
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
        rows = self._table.rows(slots, with_filters=False)
        ids = self.ops.sample(logits[:, None], rows, positions[:, None], target_ids)[:, 0]
        return ids if target_ids is None else target_ids[ids]

    def score_draft(
        self,
        logits: Tensor,
        slots: list[int],
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
        rows = self._table.rows(slots, with_filters=False)
        if rows is not None:
            sampled = [row for row, slot in enumerate(slots) if slot in self._table.sampled]
            chosen = torch.tensor(sampled, device=logits.device)
            perturbed = self.ops.perturb_logits(logits, rows, positions, target_ids, chosen)
            logits = logits.index_copy(0, chosen, perturbed)
        return torch.log_softmax(logits.float(), dim=-1)
