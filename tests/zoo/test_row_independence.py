"""A row computed alone and in any batch has the same bits, on any number of threads."""

import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2FN

from checks.zoo.logits import PagedTexts
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.transformers.modules import (
    RowActivation,
    RowLayerNorm,
    RowModule,
    RowSilu,
    RowSoftcap,
)
from specdecode_kernels import choose_backend
from tests.row_batches import ROWS, assert_rows_are_independent
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")
TEXTS = ROWS
SAMPLE = (2, 9, 33, TEXTS)
PROMPT = 3
WIDTH = 45
ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "quick_gelu", "relu2", "sigmoid", "tanh")
OPS = choose_backend("auto", CPU, torch.float32, 16).backend
TYPES = ("gemma2", "cohere2", "phi3", "qwen3", "glm4_moe", "deepseek_v3", "youtu")
"""Widths of 90; tanh and gelu, layer norms, fused maps, whole layers, experts chosen by groups,
latents."""


def draw(*shape: int) -> Tensor:
    """Normal numbers, others for each shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


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
def test_rows_of_a_model_have_the_same_bits_alone_and_in_batches(
    name: str, make_model: MakeModel
) -> None:
    linears = Linears.of(choose_backend("auto", CPU, torch.float32, 16))
    config = TransformersConfig.load(make_model(name)[0])
    batches = DecodeBatches(TransformersModel.load(config, device=CPU, linears=linears), linears)
    alone = torch.cat([batches.logits([text]) for text in range(TEXTS)])
    for threads, sizes in ((1, range(2, TEXTS + 1)), (2, SAMPLE), (3, SAMPLE)):
        torch.set_num_threads(threads)
        for size in sizes:
            texts = [(size * 5 + offset) % TEXTS for offset in range(size)]
            assert torch.equal(batches.logits(texts), alone[texts]), f"{size} on {threads} threads"


MODULES: dict[str, RowModule] = {
    "layer norm": RowLayerNorm(draw(WIDTH), draw(WIDTH), 1e-5),
    "silu": RowSilu(OPS, torch.float32, CPU),
    "softcap": RowSoftcap(0.7),
    **{f"activation {name}": RowActivation(ACT2FN[name]) for name in ACTIVATIONS},
}


@pytest.mark.parametrize("name", MODULES)
def test_rows_of_a_module_have_the_same_bits_alone_and_in_batches(name: str) -> None:
    x = draw(ROWS, WIDTH) * 4
    assert_rows_are_independent(lambda rows: MODULES[name](x[rows]))
