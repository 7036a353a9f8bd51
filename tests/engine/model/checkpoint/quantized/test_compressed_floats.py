"""Floats of 4 and 8 bits are, in float32, what the parts of compressed-tensors make of them.

`compressed_floats/write.py` wrote the checkpoint with version 0.20, in an environment of its own.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from tests.engine.model.checkpoint.quantized.logits import plain_weights

FOLDER = Path(__file__).parent / "compressed_floats"
NAMES = {"nvfp4", "mxfp4", "mxfp8", "block", "channel", "tensor"}


def test_weights_are_those_that_the_library_dequantizes() -> None:
    plain = plain_weights(FOLDER)
    expected = load_file(FOLDER / "dequantized.safetensors")
    assert plain.keys() == expected.keys() == {f"{name}.weight" for name in NAMES}
    for name, weight in expected.items():
        assert weight.dtype == torch.float32
        assert torch.equal(plain[name], weight), name
        assert weight[3].eq(0).all()
        assert weight.ne(0).any()


def test_float8_that_is_kept_has_these_weights() -> None:
    expected = load_file(FOLDER / "dequantized.safetensors")
    tensors = open_checkpoint(FOLDER).tensors
    for name in ("mxfp8", "block", "channel", "tensor"):
        quantized = tensors[f"{name}.weight"].quantized
        assert quantized is not None
        read = quantized.read()
        assert read is not None
        assert torch.equal(read.plain(), expected[f"{name}.weight"]), name
