"""The layer map: groups, owners and head sizes as transformers computes them for its configs."""

from typing import Any

import pytest
import torch
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
from transformers.models.lfm2 import Lfm2Config
from transformers.models.llama4 import Llama4TextConfig
from transformers.models.mimo_v2_flash import MiMoV2FlashConfig
from transformers.models.qwen3_5 import Qwen3_5TextConfig

from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.model.kv.layer_map import LayerMap, LayerMapError, LayerShape, shared_owners
from specdecode_engine.model.target.recurrent_config import read_delta_layers
from specdecode_engine.model.target.transformers_config import read_layer_map
from specdecode_kernels import DeltaShape

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
        (
            Gemma3TextConfig(**SIZES, num_hidden_layers=1, layer_types=["indexed_attention"]),
            "indexed_attention; only full_attention, sliding_attention, chunked_attention, conv",
        ),
    ],
)
def test_other_attention_is_refused(config: PreTrainedConfig, message: str) -> None:
    with pytest.raises(LayerMapError, match=message):
        read_layer_map(config)


def test_latents_are_keys_whose_first_entries_are_values() -> None:
    found = read_layer_map(DeepseekV3Config(num_hidden_layers=3))
    (latent,) = found.shapes
    assert (latent.kv_heads, latent.k_head_dim, latent.v_head_dim) == (1, 576, 512)
    assert latent.is_latent
    assert all(spec.is_latent for spec in found.layers)
    assert found.head_dims == (576, 512)
    assert found.entries_per_token == 3 * 576


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


RECURRENT: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
}


def test_layers_with_attention_are_counted_without_the_recurrent_ones() -> None:
    config = Qwen3_5TextConfig(**RECURRENT)
    assert config.layer_types == ["linear_attention"] * 3 + [FULL]
    assert read_layer_map(config) == LayerMap.uniform(1, 2, 16)
    found = read_delta_layers(config)
    assert found == DeltaLayers(3, DeltaShape(2, 4, 8, 6, conv_width=4))
    assert found.state_bytes(torch.bfloat16) == 3 * (4 * 8 * 6 * 4 + 3 * (2 * 2 * 8 + 4 * 6) * 2)
    assert found.drafted_bytes(5, torch.float32) == 3 * 4 * (2 * 2 * 8 + 4 * 6 + 8) * 4


CONVOLUTIONS: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 3,
    "layer_types": ["conv", FULL, "conv"],
    "conv_L_cache": 4,
    "conv_bias": True,
}


def test_short_convolutions_are_read() -> None:
    config = Lfm2Config(**CONVOLUTIONS)
    assert read_layer_map(config) == LayerMap.uniform(1, 2, 16)
    found = read_delta_layers(config)
    assert found == DeltaLayers(2, DeltaShape.of_convolution(64, 4), has_bias=True)
    assert found.state_bytes(torch.bfloat16) == 2 * 3 * 64 * 2
    assert found.drafted_bytes(5, torch.float32) == 2 * 4 * 64 * 4


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"layer_types": ["conv"] * 3}, "conv alone; one layer at least must attend"),
        ({"layer_types": ["conv", FULL, "linear_attention"]}, "conv and linear_attention; one"),
        ({"conv_L_cache": 0}, "conv_L_cache is 0; it must be a positive integer"),
        ({"conv_L_cache": 1}, "conv_L_cache is 1; a convolution of one input has no state"),
        ({"conv_L_cache": 17}, "conv_L_cache is 17; 16 at most"),
    ],
)
def test_convolutions_that_cannot_be_are_refused(keys: dict[str, Any], error: str) -> None:
    with pytest.raises(LayerMapError, match=error):
        read_delta_layers(Lfm2Config(**{**CONVOLUTIONS, **keys}))


def test_a_model_without_recurrent_layers_has_no_states() -> None:
    assert read_delta_layers(LlamaConfig(**SIZES, num_hidden_layers=3)) is None


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "alone; one layer at least must attend"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3; it must be a multiple of"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads is 0; it must be a positive integer"),
        ({"linear_key_head_dim": 10**9}, "linear_key_head_dim is 1000000000; 256 at most"),
        ({"linear_conv_kernel_dim": 99}, "linear_conv_kernel_dim is 99; 16 at most"),
    ],
)
def test_sizes_of_states_that_cannot_be_are_refused(keys: dict[str, Any], error: str) -> None:
    with pytest.raises(LayerMapError, match=error):
        read_delta_layers(Qwen3_5TextConfig(**{**RECURRENT, **keys}))
