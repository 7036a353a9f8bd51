"""Logits through pages, windows and trees equal those of transformers' own forward."""

import pytest
import torch

from checks.zoo.logits import (
    LENGTH,
    PREFIX,
    TOLERANCE,
    PagedTexts,
    tables_difference,
    worst_differences,
)
from specdecode_engine.model.target.config import EMBEDDED, AuxHiddenStates
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
TYPES = ("qwen2", "gemma2", "gemma3_text", "phi3", "cohere2", "glm4", "stablelm", "granite")
NATIVE = ("gpt_oss", "qwen3_moe", "gemma2", "gemma3_text")
MIXTURES = ("gpt_oss", "glm4_moe", "phimoe", "gemma4_moe", "llama4_text")
RECURRENT = ("qwen3_5_text", "qwen3_next", "qwen3_5_moe_text", "lfm2", "lfm2_moe")


@pytest.mark.parametrize("name", TYPES + MIXTURES + LATENT + RECURRENT)
def test_logits_are_those_of_transformers(name: str, make_model: MakeModel) -> None:
    folder, reference = make_model(name)
    model = TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    found = worst_differences(reference, model)
    ways = {"prefill", "decode, pages of 1", "decode, pages of 16", "tree"}
    assert set(found) == (ways | {"two rotary tables"} if name == "phi3" else ways)
    assert all(difference <= TOLERANCE for difference in found.values()), found


@pytest.mark.parametrize("name", NATIVE)
def test_logits_of_the_native_implementation_are_those_of_transformers(
    name: str, make_model: MakeModel
) -> None:
    """gpt-oss: texts longer than three windows, and past the positions before YaRN's stretching."""
    folder, reference = make_model(name)
    if name == "gpt_oss":
        config = reference.config
        assert 3 * config.sliding_window < PREFIX
        assert config.rope_parameters["original_max_position_embeddings"] < PREFIX
    found = worst_differences(reference, Llama.load(folder, device=CPU))
    assert set(found) == {"prefill", "decode, pages of 1", "decode, pages of 16", "tree"}
    assert all(difference <= TOLERANCE for difference in found.values()), found


def test_a_window_that_is_left_out_shows(make_model: MakeModel) -> None:
    """The comparison itself: the prompts are longer than the window."""
    folder, reference = make_model("gemma2")
    model = TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    reference.config.sliding_window = 2 * LENGTH
    try:
        found = worst_differences(reference, model)
    finally:
        reference.config.sliding_window = 16
    assert all(difference > TOLERANCE for difference in found.values()), found


def test_the_rotary_table_of_another_length_shows(make_model: MakeModel) -> None:
    """The comparison itself: all texts get the table of the longest."""
    folder, reference = make_model("phi3")
    model = TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    ids = torch.arange(6, 6 + 2 * LENGTH).view(2, LENGTH)
    assert tables_difference(reference, model, ids) <= TOLERANCE
    original = reference.config.rope_parameters["original_max_position_embeddings"]
    reference.config.rope_parameters["original_max_position_embeddings"] = 1
    try:
        assert tables_difference(reference, model, ids) > TOLERANCE
    finally:
        reference.config.rope_parameters["original_max_position_embeddings"] = original


def test_aux_hidden_states_are_the_embedding_and_outputs(make_model: MakeModel) -> None:
    folder, reference = make_model("gemma3_text")
    model = TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    ids = torch.arange(6, 6 + 20)
    with torch.no_grad():
        states = reference(ids[None], output_hidden_states=True).hidden_states
    positions, view = PagedTexts.make(model, 4).spans([(0, 0, 20)])
    hidden, aux = model.forward(ids, positions, view, AuxHiddenStates(layers=(EMBEDDED, 0, 2)))
    wanted = torch.cat((states[0][0], states[1][0], states[3][0]), dim=-1)
    torch.testing.assert_close(aux, wanted, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(hidden, states[4][0], atol=1e-4, rtol=1e-4)
    final, same = model.forward(ids, positions, view, AuxHiddenStates(final=True))
    assert same is final
    with pytest.raises(ValueError, match=r"aux layer is 9; the model has layers 0\.\.3"):
        model.forward(ids, positions, view, AuxHiddenStates(layers=(9,)))
