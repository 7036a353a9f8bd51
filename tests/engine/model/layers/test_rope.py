"""Angles equal transformers' for every kind; in a wide model they are the same, widened."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specdecode_engine.batch.rotary_tables import RotaryLimits, RotaryOffsets
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.layers.layers import rotary_rows
from specdecode_engine.model.layers.rope import (
    RopeConfig,
    build_angles,
    make_rotary_limits,
    parse_rope,
)

CPU = torch.device("cpu")
LENGTH = 300
ONE_TABLE = RotaryLimits((10,), 10)

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


@pytest.mark.parametrize(
    ("keys", "theta"),
    [
        ({}, 1e6),
        ({"rope_theta": 1e4}, 1e4),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 1e4),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
        ({"rope_parameters": {"rope_type": "default"}}, 1e6),
    ],
)
def test_the_base_of_a_file_replaces_that_of_its_family(
    keys: dict[str, object], theta: float
) -> None:
    config = ConfigFile(Path("config.json"), {"max_position_embeddings": 512, **keys})
    assert parse_rope(config, 8, {"rope_theta": 1e6}).theta == theta


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
    config = RopeConfig(kind, 5000.0, parameters, positions)
    limits = make_rotary_limits([config], LENGTH)
    angles = build_angles(config, 8, limits, torch.float32, CPU)
    assert angles.shape[1] == sum(limits.rows)
    for limit, table in zip(limits.limits, angles.split(limits.rows, dim=1), strict=True):
        # Theirs depend on the greatest position.
        shown = torch.arange(limit)[None]
        wanted = LlamaRotaryEmbedding(described)(torch.zeros(()), shown)
        for ours, theirs in zip(table, wanted, strict=True):
            assert ours.dtype == torch.float32
            both = torch.cat((ours, ours), dim=-1)
            torch.testing.assert_close(both, theirs[0, : len(both)], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("kind", "context_length", "limits"),
    [
        ("default", 300, (300,)),
        ("dynamic", 64, (64,)),
        ("dynamic", 50, (64,)),
        ("dynamic", 300, (64, 128, 256, 512)),
        ("longrope", 300, (32, 300)),
        ("longrope", 32, (32,)),
    ],
)
def test_tables_follow_from_the_kind(
    kind: str, context_length: int, limits: tuple[int, ...]
) -> None:
    config = RopeConfig(kind, 5000.0, {"rope_type": kind, **KINDS[kind]}, 64)
    assert config.table_limits(context_length) == limits


def test_a_text_uses_the_first_table_that_suffices() -> None:
    limits = RotaryLimits((64, 128, 256), 200)
    assert limits.rows == (64, 128, 200)
    assert [limits.first_row(n) for n in (1, 64, 65, 128, 129, 200)] == [0, 0, 64, 64, 192, 192]


def test_layers_of_several_kinds_have_the_tables_of_all() -> None:
    stretched = RopeConfig("longrope", 5000.0, KINDS["longrope"], 512)
    plain = RopeConfig("default", 5000.0, {}, 512)
    assert make_rotary_limits([stretched, plain], 100) == RotaryLimits((32, 100), 100)
    assert make_rotary_limits([plain], 100) == RotaryLimits((100,), 100)


def test_rows_are_those_of_each_requests_table() -> None:
    offsets = RotaryOffsets(RotaryLimits((32, 100), 100), 4, CPU)
    for req_index, length in ((1, 33), (2, 32), (3, 100)):
        offsets.open(req_index, length)
    offsets.open(3, 5)  # the next request with this index
    req_indices, positions = torch.tensor([1, 2, 3, 0]), torch.tensor([7, 8, 9, 0])
    assert offsets.rows(req_indices, positions).tolist() == [39, 8, 9, 0]
    alone = RotaryOffsets(RotaryLimits((100,), 100), 4, CPU)
    alone.open(1, 50)
    assert alone.rows(req_indices, positions) is positions


def test_a_wide_model_gets_wide_angles() -> None:
    config = RopeConfig("default", 5000.0, {}, 64)
    narrow = build_angles(config, 8, ONE_TABLE, torch.bfloat16, CPU)
    wide = build_angles(config, 8, ONE_TABLE, torch.float64, CPU)
    assert narrow.dtype == torch.float32
    assert wide.dtype == torch.float64
    assert torch.equal(narrow.double(), wide)


def test_rows_are_picked_by_position() -> None:
    angles = build_angles(RopeConfig("default", 5000.0, {}, 64), 8, ONE_TABLE, torch.float32, CPU)
    cos, sin = rotary_rows(angles, torch.tensor([7, 0, 7]))
    assert torch.equal(cos, angles[0, [7, 0, 7]])
    assert torch.equal(sin, angles[1, [7, 0, 7]])
