"""Which linear layers are packed, what is shared, and what an engine reports about it."""

from pathlib import Path

import pytest
import torch

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.model.drafts.eagle import Eagle1Head
from specdecode_engine.model.layers.layers import Mlp
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.llama import Llama
from specdecode_kernels import PackedWeight, choose_backend, cpu

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "models"
CPU = torch.device("cpu")


@pytest.fixture
def packing() -> Linears:
    """Packs; this machine can, or the test fails."""
    linears = Linears.of(choose_backend("auto", CPU, torch.float32, 16))
    assert linears.plain_weights is None
    return linears


def boot(dtype: str) -> EngineBoot:
    document = {
        "model": {"path": str(EXAMPLES / "target"), "dtype": dtype},
        "speculation": {"algorithm": "EAGLE", "draft_path": str(EXAMPLES / "eagle")},
        "device": "cpu",
        "threads": 1,
    }
    return EngineBoot.model_validate(document)


def test_an_engine_on_a_cpu_packs_and_reports_it(packing: Linears) -> None:
    core = build_poisoned(boot("float32"), 64)
    assert core.facts["linears"] == "packed"
    assert "in the order in which C reads them" in str(core.facts["linears_reason"])
    assert core.facts["cpu_kernel_tuning"] == cpu.tuning_facts(torch.float32)
    target = core.context.target
    assert isinstance(target, Llama)
    layer = target.layers[0]
    assert isinstance(layer.mlp, Mlp)
    assert isinstance(layer.mlp.down.weight, PackedWeight)


def test_an_engine_that_cannot_pack_reports_why() -> None:
    facts = build_poisoned(boot("float64"), 64).facts
    assert facts["linears"] == "plain"
    assert "not torch.float64" in str(facts["linears_reason"])


def test_a_head_without_own_weights_shares_the_packed_ones(packing: Linears) -> None:
    target = Llama.load(EXAMPLES / "target", device=CPU, dtype=torch.float32, linears=packing)
    assert isinstance(target.layers[0].attention.qkv.weight, PackedWeight)
    head = Eagle1Head.load(EXAMPLES / "eagle", target, linears=packing)
    assert head.head is target.head
