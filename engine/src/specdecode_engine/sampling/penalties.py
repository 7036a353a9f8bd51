"""Repetition, presence and frequency penalties and logit bias, exact at every node of a draft."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.request import SamplingParams


@dataclass(frozen=True, slots=True)
class _SlotState:
    """What one slot's penalties depend on; [vocab] tensors on the device."""

    params: SamplingParams
    in_prompt: Tensor  # bool
    counts: Tensor  # f32, of output tokens; updated in place as tokens are committed
    bias: Tensor | None  # f32


class Penalties:
    """State of the slots that asked for penalties or a bias; the others cost nothing."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        self._device = device
        self._slots: dict[int, _SlotState] = {}

    def open(self, slot: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
        """Start following a slot, if its parameters need it."""
        self._slots.pop(slot, None)
        is_off = params.repetition_penalty == 1 and not (
            params.presence_penalty or params.frequency_penalty or params.logit_bias
        )
        if is_off:
            return
        in_prompt = torch.zeros(self._vocab, dtype=torch.bool, device=self._device)
        in_prompt[torch.tensor(prompt, device=self._device)] = True
        counts = self._zeros()
        if output:
            ids = torch.tensor(output, device=self._device)
            counts += torch.bincount(ids, minlength=self._vocab).to(counts.dtype)
        self._slots[slot] = _SlotState(params, in_prompt, counts, self._bias(params))

    def commit(self, slots: list[int], tokens: Tensor, emitted: Tensor) -> None:
        """Count tokens that were added to outputs.

        Args:
            tokens: [batch, n] i64.
            emitted: [batch] i64, how many of each row count.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        for row, slot in enumerate(slots):
            if slot in self._slots:
                counts = self._slots[slot].counts
                counts.index_add_(0, tokens[row], (places < emitted[row]).to(counts.dtype))

    def close(self, slot: int) -> None:
        """Forget a slot."""
        self._slots.pop(slot, None)

    def apply(self, logits: Tensor, slots: list[int], draft: Draft | None) -> Tensor:
        """Return logits after penalties and bias.

        Args:
            logits: [batch, nodes, vocab] float; not changed.
            slots: the slot of each batch row.
            draft: a node counts the drafted tokens on the path to it, its own included, as if
                they were output already.
        """
        chosen = [row for row, slot in enumerate(slots) if slot in self._slots]
        if not chosen:
            return logits
        result = logits.clone()
        for row in chosen:
            state = self._slots[slots[row]]
            result[row] = _penalise(logits[row], state, self._counts(state, row, draft))
        return result

    def _counts(self, state: _SlotState, row: int, draft: Draft | None) -> Tensor:
        """Times that each token stands in the output up to each node; [nodes, vocab] f32."""
        counts = state.counts[None]
        if draft is None:
            return counts
        drafted = torch.nn.functional.one_hot(draft.tokens[row], self._vocab).to(counts.dtype)
        if draft.tree is None:
            on_path = drafted.cumsum(dim=0)
            return counts + torch.nn.functional.pad(on_path, (0, 0, 1, 0))
        return counts + draft.tree.ancestry[row, :, 1:].to(counts.dtype) @ drafted

    def _zeros(self) -> Tensor:
        return torch.zeros(self._vocab, device=self._device)

    def _bias(self, params: SamplingParams) -> Tensor | None:
        if not params.logit_bias:
            return None
        bias = self._zeros()
        ids = torch.tensor(list(params.logit_bias), device=self._device)
        bias[ids] = torch.tensor(list(params.logit_bias.values()), device=self._device)
        return bias


def _penalise(logits: Tensor, state: _SlotState, counts: Tensor) -> Tensor:
    """Apply one slot's penalties and bias to its nodes' logits [nodes, vocab]."""
    params = state.params
    scaled = torch.where(
        logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty
    )
    result = torch.where((counts > 0) | state.in_prompt, scaled, logits)
    result = result - params.presence_penalty * (counts > 0).to(logits.dtype)
    result = result - params.frequency_penalty * counts.to(logits.dtype)
    return result if state.bias is None else result + state.bias.to(logits.dtype)
