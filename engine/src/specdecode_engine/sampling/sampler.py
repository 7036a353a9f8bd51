"""Logits to tokens by the position-keyed rule, for drafted and plain rows alike."""

import torch
from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.grammar import Grammar
from specdecode_engine.request import SamplingParams
from specdecode_engine.sampling.filters import filter_logits
from specdecode_engine.sampling.grammar_masks import DraftOnHost, GrammarMasks
from specdecode_engine.sampling.noise import gumbel_noise
from specdecode_engine.sampling.penalties import Penalties
from specdecode_engine.sampling.table import SamplingTable


class Sampler:
    """The sampling state of every slot and the rule that turns logits into tokens.

    Penalties, bias, grammar, temperature, filters, noise: in this order, at every node alike.
    """

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.grammars = GrammarMasks(vocab, device)
        self._table = SamplingTable(slots, device)
        self._penalties = Penalties(vocab, device)
        self._vocabulary = torch.arange(vocab, device=device)

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

    def choose(
        self,
        logits: Tensor,
        slots: list[int],
        positions: Tensor,
        draft: Draft | None = None,
        on_host: DraftOnHost | None = None,
    ) -> Tensor:
        """Choose the token of every node by the target's rule.

        Args:
            logits: [batch, nodes, vocab] float, the target's, unprocessed.
            slots: the slot of each batch row.
            positions: [batch, nodes] i64, absolute positions of the tokens to be chosen.
            draft: what the nodes behind the first one were drafted as.
            on_host: what `grammars.ship` returned for the draft.

        Returns:
            [batch, nodes] i64.
        """
        processed = self._penalties.apply(logits, slots, draft)
        processed = self.grammars.apply(processed, slots, on_host)
        return self._pick(processed, slots, positions, filters=True)

    def choose_draft(
        self,
        logits: Tensor,
        slots: list[int],
        positions: Tensor,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        """Choose a draft token per row with the request's temperature and the same noise.

        Sharing the noise makes a draft that resembles the target choose the target's token also
        at temperature > 0. Filters and penalties are left out: they cost more than they gain here.

        Args:
            logits: [batch, draft_vocab] float, the draft's.
            positions: [batch] i64.
            target_ids: [draft_vocab] i64, the target's id of every draft id, where they differ.

        Returns:
            [batch] i64 ids of the target.
        """
        ids = self._pick(logits[:, None], slots, positions[:, None], False, target_ids)[:, 0]
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
        sampled = [row for row, slot in enumerate(slots) if slot in self._table.sampled]
        if sampled:
            rows = torch.tensor(sampled, device=logits.device)
            perturbed = self._perturb(logits, slots, sampled, positions, False, target_ids)
            logits = logits.index_copy(0, rows, perturbed)
        return torch.log_softmax(logits.float(), dim=-1)

    def _pick(
        self,
        logits: Tensor,
        slots: list[int],
        positions: Tensor,
        filters: bool,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        greedy = logits.argmax(dim=-1)
        sampled = [row for row, slot in enumerate(slots) if slot in self._table.sampled]
        if not sampled:
            return greedy
        perturbed = self._perturb(logits, slots, sampled, positions, filters, target_ids)
        rows = torch.tensor(sampled, device=logits.device)
        return greedy.index_copy(0, rows, perturbed.argmax(dim=-1))

    def _perturb(
        self,
        logits: Tensor,
        slots: list[int],
        rows: list[int],
        positions: Tensor,
        filters: bool,
        target_ids: Tensor | None,
    ) -> Tensor:
        """Temperature, filters and noise for the batch rows `rows`; [len(rows), nodes, vocab]."""
        chosen = torch.tensor(rows, device=logits.device)
        nodes, vocab = logits.shape[1:]
        slot_rows = torch.tensor([slots[row] for row in rows], device=logits.device)
        params = self._table.rows(slot_rows.repeat_interleave(nodes))
        scaled = logits[chosen].reshape(-1, vocab) / params.temperature[:, None].to(logits.dtype)
        if filters and any(slots[row] in self._table.filtered for row in rows):
            scaled = filter_logits(scaled, params.top_k, params.top_p, params.min_p)
        tokens = self._vocabulary if target_ids is None else target_ids
        noise = gumbel_noise(params.seeds, positions[chosen].reshape(-1), tokens)
        return (scaled + noise.to(logits.dtype)).view(len(rows), nodes, vocab)
