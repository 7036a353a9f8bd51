"""What is left to modules of transformers; all types, and a newer one: `make test-transformers`."""

import logging
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from checks.zoo.left_parts import parts_of
from checks.zoo.models import ZooModel
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_engine.model.transformers import left_parts
from specdecode_engine.model.transformers.left_parts import EXPECTED, parts_left, report_left
from specdecode_engine.model.transformers.row_attention import check_arguments
from specdecode_engine.model.transformers.row_layer import RowDecoderLayer, recognise_layer
from tests.zoo.conftest import MakeModel
from tests.zoo.test_row_attention import load


@pytest.mark.parametrize(
    "name",
    ["llama", "qwen2", "mistral", "smollm3", "youtu", "granite", "olmo2", "gpt_oss", "lfm2"],
)
def test_no_more_is_left_than_expected(
    name: str, models: dict[str, ZooModel], tmp_path: Path
) -> None:
    assert parts_of(models[name], tmp_path) == EXPECTED.get(name, frozenset())


def layer_called_with(cache: str, whole: RowDecoderLayer) -> nn.Module:
    """Return a layer of Llama whose forward has a cache of this name."""
    config: Any = AutoConfig.for_model("llama", hidden_size=64)
    layer = LlamaDecoderLayer(config, 0)
    layer._modules = {
        "self_attn": whole.attention,
        "mlp": whole.mlp,
        "input_layernorm": whole.input_norm,
        "post_attention_layernorm": whole.mlp_norm,
    }
    names: dict[str, Any] = {"normal": LlamaDecoderLayer.forward, "Tensor": Tensor}
    exec(
        f"def forward(self, hidden_states, attention_mask=None, position_ids=None, {cache}=None, "
        "use_cache=None, position_embeddings=None, **kwargs):\n"
        "    return normal(self, hidden_states, position_embeddings=position_embeddings, **kwargs)",
        names,
    )
    layer.__class__ = type("Renamed", (LlamaDecoderLayer,), {"forward": names["forward"]})
    return layer


@pytest.fixture(scope="module")
def whole(make_model: MakeModel) -> RowDecoderLayer:
    layer = load(make_model("llama")[0], Linears())._layers[0]
    assert isinstance(layer, RowDecoderLayer)
    return layer


@pytest.mark.parametrize(
    ("cache", "is_known"), [("past_key_values", True), ("cache", True), ("other", False)]
)
def test_a_layer_is_replaced_when_its_cache_has_a_known_name(
    cache: str, is_known: bool, whole: RowDecoderLayer
) -> None:
    layer = layer_called_with(cache, whole)
    assert (recognise_layer(layer) is not None) == is_known
    assert parts_left([layer, whole]) == {"layers"}


def test_attention_is_given_no_cache() -> None:
    check_arguments("path", None, {"past_key_values": None, "cache": None, "use_cache": False})
    with pytest.raises(UnsupportedModel, match="the arguments other by its layer"):
        check_arguments("path", None, {"other": object(), "cache": None})


def test_layers_that_are_left_are_logged_once(
    whole: RowDecoderLayer, caplog: pytest.LogCaptureFixture
) -> None:
    left_parts._warn.cache_clear()
    layer = layer_called_with("other", whole)
    with caplog.at_level(logging.WARNING):
        report_left("llama", [whole, whole])
        report_left("granite", [whole, layer])
        assert not caplog.records
        report_left("llama", [whole, layer])
        report_left("llama", [whole, layer])
    (record,) = caplog.records
    assert "model type llama: layers of transformers" in record.getMessage()
