"""Checkpoints that GPTQModel wrote have the weights that GPTQModel dequantizes.

`gptqmodel/write.py` made them, in an environment of its own.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from specdecode_engine.model.implementations import load_model, read_config
from specdecode_engine.model.linears import Linears
from specdecode_engine.model.quantized.store import open_checkpoint
from specdecode_engine.startup.model_check import CheckOptions, check_pair

CHECKPOINTS = Path(__file__).parent / "gptqmodel"
FORMATS = {"awq": "awq", "gptq-desc-act": "gptq", "gptq-v2": "gptq"}
CPU = torch.device("cpu")
IDS = torch.tensor([3, 41, 7, 12, 8, 60, 33])
TOLERANCE = 2e-5


def plain_weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the engine reads, in float32."""
    store = open_checkpoint(folder)
    plain = {name: torch.empty(one.shape) for name, one in store.tensors.items()}
    for name, weight in plain.items():
        store.read(name, weight)
    return plain


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_that_gptqmodel_dequantizes(name: str) -> None:
    """In GPTQModel the product of scale and integer is a float16, in the engine a float32."""
    plain = plain_weights(CHECKPOINTS / name)
    expected = load_file(CHECKPOINTS / name / "dequantized.safetensors")
    assert len(expected) == 7
    for module, weight in expected.items():
        assert weight.dtype == torch.float16
        assert torch.equal(plain[module].half(), weight), module


@torch.no_grad()
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantized_weights(name: str, texts: Any) -> None:
    folder = CHECKPOINTS / name
    config = LlamaConfig.from_pretrained(folder)
    del config.quantization_config
    reference: Any = LlamaForCausalLM(config).eval()
    reference.load_state_dict(plain_weights(folder))
    expected = reference(IDS[None]).logits[0]
    for implementation in ("native", "transformers"):
        ours = read_config(folder, implementation)
        model = load_model(
            folder,
            ours,
            dtype=torch.float32,
            device=CPU,
            context_length=32,
            progress=False,
            open_store=open_checkpoint,
            linears=Linears(),
        )
        positions, view = texts.make(ours, 1, len(IDS), 4).view((0, 0, len(IDS)))
        logits = model.logits(model.forward(IDS, positions, view)[0])
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", FORMATS)
def test_check_names_the_format(name: str) -> None:
    checked = check_pair(CHECKPOINTS / name, None, CheckOptions(torch.bfloat16)).target
    assert checked.reason is None
    assert checked.quantization == f"{FORMATS[name]} (int4, groups of 32)"
