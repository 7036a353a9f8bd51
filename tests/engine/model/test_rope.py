"""Angles equal transformers' for every kind; in a wide model they are the same, widened."""

from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specdecode_engine.model.layers import rotary_rows
from specdecode_engine.model.rope import RopeConfig, build_angles

CPU = torch.device("cpu")
LENGTH = 300

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "longrope": {
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("positions", [64, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_angles_are_those_of_transformers(kind: str, positions: int) -> None:
    parameters = {"rope_type": kind, "rope_theta": 5000.0, **KINDS[kind]}
    described = transformers.LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=positions,
        rope_parameters=dict(parameters),
    )
    wanted = LlamaRotaryEmbedding(described)(torch.zeros(()), torch.arange(LENGTH)[None])
    config = RopeConfig(kind, 5000.0, parameters, positions)
    angles = build_angles(config, 8, LENGTH, torch.float32, CPU)
    for ours, theirs in zip(angles, wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(torch.cat((ours, ours), dim=-1), theirs[0], atol=1e-6, rtol=0)


def test_a_wide_model_gets_wide_angles() -> None:
    config = RopeConfig("default", 5000.0, {}, 64)
    narrow = build_angles(config, 8, 10, torch.bfloat16, CPU)
    wide = build_angles(config, 8, 10, torch.float64, CPU)
    assert narrow.dtype == torch.float32
    assert wide.dtype == torch.float64
    assert torch.equal(narrow.double(), wide)


def test_rows_are_picked_by_position() -> None:
    angles = build_angles(RopeConfig("default", 5000.0, {}, 64), 8, 10, torch.float32, CPU)
    cos, sin = rotary_rows(angles, torch.tensor([7, 0, 7]))
    assert torch.equal(cos, angles[0, [7, 0, 7]])
    assert torch.equal(sin, angles[1, [7, 0, 7]])
