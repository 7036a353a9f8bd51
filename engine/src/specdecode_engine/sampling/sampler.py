"""Logits to tokens by the position-keyed rule, for drafted and plain rows alike."""

import torch
from torch import Tensor

from specdecode_engine.request import SamplingParams
from specdecode_engine.sampling.filters import filter_logits
from specdecode_engine.sampling.noise import gumbel_noise
from specdecode_engine.sampling.penalties import Penalties
from specdecode_engine.sampling.table import SamplingTable


class Sampler:
    """The sampling state of every slot and the rule that turns logits into tokens."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self._table = SamplingTable(slots, device)
        self._penalties = Penalties(vocab, device)
        self._vocabulary = torch.arange(vocab, device=device)

    def open(self, slot: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
        """Take up a sequence that has just been given a slot."""
        self._table.write(slot, params)
        self._penalties.open(slot, params, prompt, output)

    def commit(self, slot: int, tokens: list[int]) -> None:
        """Count tokens that were appended to a sequence's output."""
        self._penalties.commit(slot, tokens)

    def close(self, slot: int) -> None:
        """Let go of a slot."""
        self._penalties.close(slot)

    def choose(
        self, logits: Tensor, slots: list[int], positions: Tensor, path: Tensor | None = None
    ) -> Tensor:
        """Choose the token of every node by the target's rule.

        Args:
            logits: [batch, nodes, vocab] float, the target's, unprocessed.
            slots: the slot of each batch row.
            positions: [batch, nodes] i64, absolute positions of the tokens to be chosen.
            path: [batch, nodes - 1] i64, the drafted chain the nodes stand on.

        Returns:
            [batch, nodes] i64.
        """
        processed = self._penalties.apply(logits, slots, path)
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
        chosen = self._pick(logits[:, None], slots, positions[:, None], False, target_ids)[:, 0]
        return chosen if target_ids is None else target_ids[chosen]

    def _pick(
        self,
        logits: Tensor,
        slots: list[int],
        positions: Tensor,
        filters: bool,
        target_ids: Tensor | None = None,
    ) -> Tensor:
        greedy = logits.argmax(dim=-1)
        chosen = [row for row, slot in enumerate(slots) if slot in self._table.sampled]
        if not chosen:
            return greedy
        rows = torch.tensor(chosen, device=logits.device)
        nodes, vocab = logits.shape[1:]
        slot_rows = torch.tensor([slots[row] for row in chosen], device=logits.device)
        params = self._table.rows(slot_rows.repeat_interleave(nodes))
        scaled = logits[rows].reshape(-1, vocab) / params.temperature[:, None].to(logits.dtype)
        if filters and any(slots[row] in self._table.filtered for row in chosen):
            scaled = filter_logits(scaled, params.top_k, params.top_p, params.min_p)
        tokens = self._vocabulary if target_ids is None else target_ids
        noise = gumbel_noise(params.seeds, positions[rows].reshape(-1), tokens)
        sampled = (scaled + noise.to(logits.dtype)).argmax(dim=-1).view(len(chosen), nodes)
        return greedy.index_copy(0, rows, sampled)
