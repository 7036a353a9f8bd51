"""Checkpoints that GPTQModel and AutoRound wrote have the weights that these dequantize.

`gptqmodel/write.py` and `autoround/write.py` made them, in environments of their own.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import Precision
from tests.engine.model.checkpoint.quantized.logits import (
    our_logits,
    plain_logits,
    plain_weights,
)
from tests.engine.test_tensors_from_memory import boot

HERE = Path(__file__).parent
FORMATS = {
    "gptqmodel/awq": "awq (int4, groups of 32)",
    "gptqmodel/gptq-desc-act": "gptq (int4, groups of 32)",
    "gptqmodel/gptq-v2": "gptq (int4, groups of 32)",
    "gptqmodel/gptq-head": "gptq (int4, groups of 32; int8, groups of 32)",
    "autoround/w2-asymmetric": "auto-round (int2, groups of 32)",
    "autoround/w3": "auto-round (int3, groups of 32)",
    "autoround/w4": "auto-round (int4, groups of 32)",
    "autoround/w4-mixed": "auto-round (int4, groups of 32; int8, groups of 32)",
}
CPU = torch.device("cpu")
IDS = torch.tensor([3, 31, 7, 12, 8, 20, 30])
TOLERANCE = 2e-5


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_that_the_library_dequantizes(name: str) -> None:
    """In GPTQModel the product of scale and integer is a float16, in the engine a float32.

    Of `gptq-head` the library widened the scales first.
    """
    plain = plain_weights(HERE / name)
    expected = load_file(HERE / name / "dequantized.safetensors")
    assert len(expected) == 7
    for module, weight in expected.items():
        assert torch.equal(plain[module].to(weight.dtype), weight), module


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantized_weights(name: str, texts: Any) -> None:
    folder = HERE / name
    expected = plain_logits(folder, plain_weights(folder), IDS)
    for implementation in ("native", "transformers"):
        logits = our_logits(folder, implementation, texts, IDS)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", FORMATS)
def test_check_names_the_format(name: str) -> None:
    checked = check_pair(HERE / name, None, CheckOptions(torch.bfloat16)).target
    assert checked.reason is None
    assert checked.quantization == FORMATS[name]


def test_weights_with_desc_act_are_kept_in_the_order_of_groups() -> None:
    """Maps that read the same rows were calibrated with them, and have one order."""
    folder = HERE / "gptqmodel" / "gptq-desc-act"
    plain, tensors = plain_weights(folder), open_checkpoint(folder).tensors
    orders: dict[str, Tensor] = {}
    for name, stored in tensors.items():
        if stored.quantized is not None:
            kept = stored.quantized.read()
            assert kept is not None
            assert torch.equal(kept.plain(), plain[name]), name
            assert kept.order is not None
            orders[name.split(".")[-2]] = kept.order
    assert len(orders) == 7
    assert torch.equal(orders["q_proj"], orders["k_proj"])
    assert torch.equal(orders["q_proj"], orders["v_proj"])
    assert torch.equal(orders["gate_proj"], orders["up_proj"])
    maps = build_core(boot(folder, None)).facts["linear_weights"]
    assert maps == {"float32": 1, "int4": 4}


def test_a_symmetric_head_of_8_bits_is_kept_in_its_groups() -> None:
    folder = HERE / "gptqmodel" / "gptq-head"
    stored = open_checkpoint(folder).tensors["lm_head.weight"].quantized
    assert stored is not None
    kept = stored.read()
    assert kept is not None
    assert kept.precision == Precision("int8", 32)
    assert torch.equal(kept.plain(), plain_weights(folder)["lm_head.weight"])
