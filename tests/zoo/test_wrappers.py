"""Of models for several kinds of input, the text model is served, and nothing is lost unnamed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from checks.zoo.__main__ import load_alone
from checks.zoo.logits import TOLERANCE, worst_differences
from checks.zoo.models import ZooModel, randomise, read_models
from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.implementations import implementation_of, read_config
from specdecode_engine.startup.model_check import CheckOptions, check_pair

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_VISION = {**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
MODELS = read_models()


def keys_of(name: str, **changes: object) -> dict[str, Any]:
    """Return the keys of a text model of the zoo."""
    model: ZooModel = MODELS[name]
    return {**model.keys, "model_type": model.model_type, **changes}


def gemma3() -> Any:
    config = transformers.Gemma3Config(
        text_config=keys_of("gemma3_text"), vision_config=VISION, mm_tokens_per_image=1
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def gemma4() -> Any:
    vision = {**VISION, "head_dim": 8, "num_key_value_heads": 2, "pooling_kernel_size": 1}
    config = transformers.Gemma4Config(
        text_config=keys_of("gemma4_text"),
        vision_config={**vision, "model_type": "gemma4_vision"},
        audio_config=None,
    )
    return transformers.Gemma4ForConditionalGeneration(config)


def llama4() -> Any:
    vision = {**VISION, "vision_output_dim": 16, "projector_input_dim": 16}
    config = transformers.Llama4Config(
        text_config=keys_of("llama4_text"),
        vision_config={**vision, "projector_output_dim": 16, "pixel_shuffle_ratio": 0.5},
    )
    config.pad_token_id = 0
    return transformers.Llama4ForConditionalGeneration(config)


def mistral3() -> Any:
    config = transformers.Mistral3Config(
        text_config=keys_of("mistral", sliding_window=None),
        vision_config={**VISION, "model_type": "pixtral", "head_dim": 8},
    )
    return transformers.Mistral3ForConditionalGeneration(config)


def qwen2_5_vl() -> Any:
    changes = {"model_type": "qwen2_5_vl_text", "use_sliding_window": False}
    config = transformers.Qwen2_5_VLConfig(
        text_config=keys_of("qwen2", rope_parameters=MROPE, **changes), vision_config=QWEN_VISION
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> Any:
    text = keys_of("qwen3", model_type="qwen3_vl_text", head_dim=16, rope_parameters=MROPE)
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config={**QWEN_VISION, "deepstack_visual_indexes": [0]},
        tie_word_embeddings=True,
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


WRAPPERS: dict[str, tuple[Callable[[], Any], str]] = {
    "gemma3": (gemma3, "native"),
    "gemma4": (gemma4, "transformers"),
    "llama4": (llama4, "transformers"),
    "mistral3": (mistral3, "transformers"),
    "qwen2_5_vl": (qwen2_5_vl, "native"),
    "qwen3_vl": (qwen3_vl, "native"),
}
"""How to make each, and which implementation `auto` chooses."""


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_text_model_of_a_wrapper_computes_what_the_whole_does(
    name: str, tmp_path: Path
) -> None:
    make, implementation = WRAPPERS[name]
    whole = make().eval()
    randomise(whole, seed=1)
    whole.save_pretrained(tmp_path)
    assert implementation_of(read_config(tmp_path)) == implementation
    model = load_alone(tmp_path, implementation)
    parts = ("vision", "visual", "projector")
    assert model.skipped_tensors
    assert all(any(part in one for part in parts) for one in model.skipped_tensors)
    assert max(worst_differences(whole, model).values()) <= TOLERANCE
    checked = check_pair(tmp_path, None, CheckOptions()).target
    assert (checked.reason, checked.has_tensors) == (None, True)
    assert_faults_are_named(tmp_path, implementation)


def assert_faults_are_named(folder: Path, implementation: Any) -> None:
    """A tensor of no known part is an error, and a lost one has its stored name."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for extra in ("memory.weight", "model.extra.weight"):
        save_file({**tensors, extra: torch.zeros(3)}, file, metadata={"format": "pt"})
        assert_error(folder, implementation, f"holds, unused, {extra};")
    lost = next(name for name in tensors if name.endswith("layers.1.input_layernorm.weight"))
    rest = {name: tensor for name, tensor in tensors.items() if name != lost}
    save_file(rest, file, metadata={"format": "pt"})
    assert_error(folder, implementation, f"lacks {lost};")


def assert_error(folder: Path, implementation: Any, message: str) -> None:
    with pytest.raises(TensorError) as caught:
        load_alone(folder, implementation)
    assert message in str(caught.value)
    assert check_pair(folder, None, CheckOptions()).reasons == (str(caught.value),)
