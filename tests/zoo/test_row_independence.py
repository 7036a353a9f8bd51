"""A row computed alone and in any batch has the same bits, on any number of threads."""

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.layers import Linears
from specdecode_engine.model.transformers.config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_kernels import choose_backend
from tests.zoo.conftest import MakeModel
from zoo.logits import PagedTexts

CPU = torch.device("cpu")
TEXTS = 67
PROMPT = 3
TYPES = ("gemma2", "cohere2", "phi3", "glm4_moe")
"""Widths of 90; tanh and gelu, layer norms, fused maps, experts chosen by groups."""


class DecodeBatches:
    """One decode row of each of many texts, in batches of any texts."""

    def __init__(self, model: TransformersModel, linears: Linears) -> None:
        self._model = model
        self._texts = PagedTexts.make(model, 4, linears.ops, texts=TEXTS)
        generator = torch.Generator().manual_seed(0)
        self._ids = torch.randint(6, 97, (TEXTS, PROMPT + 1), generator=generator)
        positions, view = self._texts.spans([(text, 0, PROMPT) for text in range(TEXTS)])
        model.forward(self._ids[:, :PROMPT].flatten(), positions, view)

    def logits(self, texts: list[int]) -> Tensor:
        """Compute the last row of each text in one forward."""
        positions, view = self._texts.spans([(text, PROMPT, PROMPT + 1) for text in texts])
        return self._model.logits(self._model.forward(self._ids[texts, PROMPT], positions, view)[0])


@pytest.mark.parametrize("name", TYPES)
def test_rows_have_the_same_bits_alone_and_in_batches(name: str, make_model: MakeModel) -> None:
    linears = Linears.of(choose_backend("auto", CPU, torch.float32, 16))
    config = TransformersConfig.load(make_model(name)[0])
    batches = DecodeBatches(TransformersModel.load(config, device=CPU, linears=linears), linears)
    alone = torch.cat([batches.logits([text]) for text in range(TEXTS)])
    for size in range(2, TEXTS + 1):
        texts = [(size * 5 + offset) % TEXTS for offset in range(size)]
        assert torch.equal(batches.logits(texts), alone[texts]), f"batch of {size}"


@pytest.mark.parametrize("name", TYPES)
def test_rows_have_the_same_bits_on_any_number_of_threads(name: str, make_model: MakeModel) -> None:
    linears = Linears()
    config = TransformersConfig.load(make_model(name)[0])
    batches = DecodeBatches(TransformersModel.load(config, device=CPU, linears=linears), linears)
    alone = torch.cat([batches.logits([text]) for text in range(TEXTS)])
    for threads in (2, 3):
        torch.set_num_threads(threads)
        for size in (2, 9, 33, TEXTS):
            texts = list(range(TEXTS - size, TEXTS))
            assert torch.equal(batches.logits(texts), alone[texts]), f"{size} on {threads} threads"
