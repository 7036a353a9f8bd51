"""The layer map: groups, owners and head sizes as transformers computes them for its configs."""

from typing import Any

import pytest
from transformers import (
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
)
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.llama4 import Llama4TextConfig
from transformers.models.mimo_v2_flash import MiMoV2FlashConfig

from specdecode_engine.model.layer_config import read_layer_map
from specdecode_engine.model.layer_map import LayerMap, LayerMapError, LayerShape, shared_owners

SLIDING, FULL = "sliding_attention", "full_attention"
SIZES: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}


def shape(window: int | None = None, kv_heads: int = 2, k: int = 16, v: int = 16) -> LayerShape:
    return LayerShape(kv_heads=kv_heads, k_head_dim=k, v_head_dim=v, sliding_window=window)


def windows(config: PreTrainedConfig) -> list[int | None]:
    return [spec.sliding_window for spec in read_layer_map(config).layers]


def test_layers_of_one_shape_and_window_form_a_group() -> None:
    shapes = [shape(8), shape(8), shape(), shape(8), shape(k=32), shape(v=32)]
    found = LayerMap.build(shapes)
    assert [spec.group for spec in found.layers] == [0, 0, 1, 0, 2, 3]
    assert found.owners == ((0, 1, 3), (2,), (4,), (5,))
    assert found.places == ((0, 0), (0, 1), (1, 0), (0, 2), (2, 0), (3, 0))
    assert found.entries_per_token == 2 * (4 * 32 + 2 * 48)


def test_a_llama_is_one_group_with_an_owner_per_layer() -> None:
    found = read_layer_map(LlamaConfig(**SIZES, num_hidden_layers=3))
    assert found == LayerMap.uniform(3, 2, 16)
    assert found.shapes == (shape(),)
    assert found.places == ((0, 0), (0, 1), (0, 2))


def test_a_window_without_layer_types_is_in_every_layer() -> None:
    assert windows(MistralConfig(**SIZES, num_hidden_layers=2, sliding_window=9)) == [9, 9]
    assert windows(MistralConfig(**SIZES, num_hidden_layers=2, sliding_window=None)) == [None] * 2
    phi = Phi3Config(**SIZES, num_hidden_layers=2, sliding_window=7, pad_token_id=0)
    assert windows(phi) == [7, 7]


def test_a_window_follows_the_switch_and_the_layer_types() -> None:
    sizes: dict[str, Any] = {
        **SIZES,
        "num_hidden_layers": 4,
        "sliding_window": 5,
        "max_window_layers": 2,
    }
    assert windows(Qwen2Config(**sizes, use_sliding_window=False)) == [None] * 4
    assert windows(Qwen2Config(**sizes, use_sliding_window=True)) == [None, None, 5, 5]
    gemma = Gemma3TextConfig(**SIZES, num_hidden_layers=6, sliding_window=12, head_dim=16)
    assert windows(gemma) == [12] * 5 + [None]


def test_layers_of_gemma_3n_share_those_of_the_last_owner_of_their_type() -> None:
    types = [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL]
    config = Gemma3nTextConfig(
        **SIZES, head_dim=16, num_hidden_layers=6, layer_types=types, num_kv_shared_layers=3,
        sliding_window=8, intermediate_size=[64] * 6, activation_sparsity_pattern=[0.0] * 6,
    )  # fmt: skip
    found = read_layer_map(config)
    assert [spec.kv_owner for spec in found.layers] == [0, 1, 2, 1, 1, 2]
    assert found.owners == ((0, 1), (2,))
    assert found.places == ((0, 0), (0, 1), (1, 0), (0, 1), (0, 1), (1, 0))
    assert found.entries_per_token == 3 * 2 * 2 * 16


def test_full_layers_of_gemma_4_have_head_sizes_of_their_own() -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1}
    config = Gemma4TextConfig(
        **SIZES, **sizes, attention_k_eq_v=True, num_hidden_layers=6, num_kv_shared_layers=2,
        sliding_window=8, layer_types=[SLIDING, FULL] * 3,
    )  # fmt: skip
    found = read_layer_map(config)
    assert found.shapes == (shape(8), shape(kv_heads=1, k=32, v=32))
    assert [spec.kv_owner for spec in found.layers] == [0, 1, 2, 3, 2, 3]
    reread = Gemma4TextConfig(**config.to_dict())
    assert read_layer_map(reread) == found


def test_values_may_be_smaller_than_keys() -> None:
    config = MiMoV2FlashConfig(**SIZES, num_hidden_layers=2, head_dim=24, v_head_dim=16)
    found = read_layer_map(config)
    assert found.shapes == (shape(k=24), shape(129, k=24))
    assert found.head_dims == (24, 16)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DeepseekV3Config(), "latent attention is not supported"),
        (
            Gemma3TextConfig(**SIZES, num_hidden_layers=1, layer_types=["linear_attention"]),
            "linear_attention; only full_attention, sliding_attention and chunked_attention",
        ),
    ],
)
def test_other_attention_is_refused(config: PreTrainedConfig, message: str) -> None:
    with pytest.raises(LayerMapError, match=message):
        read_layer_map(config)


def test_layers_of_llama_4_with_rotation_attend_in_chunks() -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "attention_chunk_size": 32}
    found = read_layer_map(Llama4TextConfig(**SIZES, **sizes, num_hidden_layers=4))
    chunked, full = found.shapes
    assert (chunked.attention_chunk_size, chunked.sliding_window, chunked.reach) == (32, None, 32)
    assert (full.attention_chunk_size, full.reach) == (None, None)
    assert [spec.attention_chunk_size for spec in found.layers] == [32, 32, 32, None]
    assert found.window == 32
    assert found.windowed_entries_per_token == 3 * chunked.width


def test_chunks_without_a_size_are_refused() -> None:
    config = Llama4TextConfig(**SIZES, num_hidden_layers=4)
    config.attention_chunk_size = None
    with pytest.raises(LayerMapError, match="attention_chunk_size is None; it must be a positive"):
        read_layer_map(config)


def test_a_window_that_is_no_number_is_refused() -> None:
    config = Gemma3TextConfig(**SIZES, num_hidden_layers=6, head_dim=16)
    config.sliding_window = None
    with pytest.raises(LayerMapError, match="sliding_window is None; it must be a positive"):
        read_layer_map(config)


@pytest.mark.parametrize(
    ("types", "num_shared", "message"),
    [
        ([FULL, SLIDING], 1, "none of the first 1 layers is of type sliding_attention"),
        ([FULL, FULL], 2, "num_kv_shared_layers is 2; .* less than the 2 layers"),
        ([FULL], -1, "num_kv_shared_layers is -1"),
    ],
)
def test_sharing_needs_an_earlier_layer_of_the_type(
    types: list[str], num_shared: int, message: str
) -> None:
    with pytest.raises(LayerMapError, match=message):
        shared_owners(types, num_shared)


@pytest.mark.parametrize("owners", [[0, 0, 1], [0, 2, 2], [0, 1, 0]])
def test_an_owner_is_an_earlier_layer_of_the_same_shape(owners: list[int]) -> None:
    with pytest.raises(LayerMapError, match="must be an earlier layer of the same head sizes"):
        LayerMap.build([shape(), shape(), shape(4)], owners)
