"""Tiny targets of the model zoo, and their hidden states from transformers in float64."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checks.zoo.models import read_models

VOCAB = 97
PROMPTS = ((3, 14, 15, 92, 65, 35), tuple(range(40, 61)), (7, 77))
"""What heads are fitted on, and drafted tokens are checked after."""
ANSWER_TOKENS = 24


def write_target(folder: Path, name: str = "llama") -> None:
    """Write the model of a name in tests/zoo/models.toml, with random weights."""
    read_models()[name].make(folder)


@dataclass(frozen=True, slots=True, eq=False)
class TargetStates:
    """What a target computes of one text of T tokens."""

    layers: Tensor  # [1 + layers, T, hidden], the embedding and what each layer gives to the next
    final: Tensor  # [T, hidden], after the final norm
    logits: Tensor  # [T, vocab]

    def side_by_side(self, layers: Sequence[int]) -> Tensor:
        """Return the outputs of several layers [T, layers * hidden]; -1 is the embedding."""
        return torch.cat([self.layers[layer + 1] for layer in layers], dim=-1)


class SlowTarget:
    """Computes whole texts with transformers, in float64 and without a cache."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        self.model = auto.from_pretrained(
            folder,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()
        self.states = lru_cache(512)(self._states)

    def _states(self, ids: tuple[int, ...]) -> TargetStates:
        """Compute one text; the results of the latest texts are kept."""
        with torch.no_grad(), self._outputs() as (layers, final):
            layers.append(self.model.get_input_embeddings()(torch.tensor(ids)))
            logits = self.model(torch.tensor([ids])).logits[0]
        return TargetStates(torch.stack(layers), final[0], logits)

    @contextmanager
    def _outputs(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Record what each layer and the final norm give."""
        layers: list[Tensor] = []
        final: list[Tensor] = []

        def note(into: list[Tensor]) -> Any:
            def record(module: Any, inputs: Any, output: Any) -> None:
                into.append((output[0] if isinstance(output, tuple) else output)[0])

            return record

        decoder = self.model.get_decoder()
        handles = [layer.register_forward_hook(note(layers)) for layer in decoder.layers]
        handles.append(decoder.norm.register_forward_hook(note(final)))
        try:
            yield layers, final
        finally:
            for handle in handles:
                handle.remove()

    def continued(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """Return a prompt with its greedy answer of `count` tokens."""
        text = list(prompt)
        for _ in range(count):
            with torch.no_grad():
                text.append(int(self.model(torch.tensor([text])).logits[0, -1].argmax()))
        return tuple(text)

    def answered_prompts(self) -> list[tuple[int, ...]]:
        """Return `PROMPTS`, each with its greedy answer."""
        return [self.continued(prompt, ANSWER_TOKENS) for prompt in PROMPTS]


def answer_tokens(texts: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the tokens of the answers in `SlowTarget.answered_prompts`, each once, in order."""
    answers = [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)]
    return list(dict.fromkeys(token for answer in answers for token in answer))
