"""Which ops may compute rows, and how a model that uses others is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers import mixture_replacement
from specdecode_engine.model.transformers import model as model_module
from specdecode_engine.model.transformers.attention import ForwardState, PagedAttention, read_params
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.transformers.modules import RowActivation
from specdecode_engine.model.transformers.row_audit import (
    ProbeView,
    RowAudit,
    is_row_independent,
)
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels.metadata import DEFAULT_ATTENTION, AttentionParams
from tests.shadow_cuda.active import shadow_cuda
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")


class Gate(nn.Module):
    """Computes allowed ops, then a child."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Tensor:
        computed: Tensor = self.child(x * 2.0 + x)
        return computed


def audit(network: nn.Module) -> dict[str, str]:
    """Return the refused ops of a forward of two rows, and where they were."""
    found = RowAudit()
    with found.watching(network):
        network(torch.ones(1, 2, 5))
    return found.refused


def test_ops_that_are_not_allowed_are_reported_with_their_module() -> None:
    assert audit(nn.Sequential(Gate(nn.SiLU()))) == {"silu": "0.child"}
    assert audit(nn.Sequential(Gate(nn.Linear(5, 4)))) == {"addmm": "0.child"}
    assert audit(nn.Sequential(Gate(nn.Softmax(dim=-1)))) == {"_softmax": "0.child"}


def test_ops_of_our_modules_are_trusted_and_no_others() -> None:
    assert audit(Gate(RowActivation(nn.SiLU()))) == {}
    assert audit(nn.Sequential(Gate(RowActivation(nn.SiLU())), nn.SiLU())) == {"silu": "1"}


def test_hooks_do_not_outlive_the_audit() -> None:
    network = Gate(nn.SiLU())
    audit(network)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "allowed"),
    [
        ("mul", (1, 2), {}, True),
        ("add", (1, 2), {}, True),
        ("add", (1, 2), {"alpha": 2}, False),
        ("pow", (1, 2), {}, True),
        ("pow", (1, 0.5), {}, False),
        ("mean", (1,), {}, False),
        ("bmm", (1, 2), {}, False),
        ("rsqrt", (1,), {}, False),
    ],
)
def test_allowed_ops(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], allowed: bool
) -> None:
    assert is_row_independent(name, args, kwargs) == allowed


def test_models_are_refused_by_op_and_module(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate of a shared expert in Qwen2-MoE is a function: the mixture is replaced whole."""
    monkeypatch.setattr(mixture_replacement, "has_shared_expert_gate", lambda _: False)
    config = TransformersConfig.load(make_model("qwen2_moe")[0])
    with pytest.raises(UnsupportedModel, match=r"qwen2_moe computes .*sigmoid in layers\.0\.mlp"):
        TransformersModel.load(config, device=CPU)


def test_a_value_of_the_wrong_type_is_refused_with_its_key(
    tmp_path: Path, make_model: MakeModel
) -> None:
    """Early configurations of Llama 4 have a number there."""
    keys = json.loads((make_model("llama4_text")[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(keys | {"attn_temperature_tuning": 4}))
    with pytest.raises(UnsupportedModel, match="'attn_temperature_tuning' expected bool, got int"):
        TransformersConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("granite", {"pad_token_id": 97}, "Padding_idx must be within num_embeddings"),
        ("phi3", {"head_dim": 7}, "cannot build model type phi3"),
        ("phi3", {"num_attention_heads": 0}, "by zero"),
        ("glm4_moe", {"num_experts_per_tok": 0}, "cannot be computed over pages"),
        ("mixtral", {"num_local_experts": 0}, "tensors of a MixtralForCausalLM cannot be named"),
    ],
)
def test_no_value_of_config_json_makes_a_check_fail(
    name: str, change: dict[str, object], reason: str, make_model: MakeModel, tmp_path: Path
) -> None:
    """It is a reason, whatever transformers raises, and loading raises the same."""
    folder = make_model(name)[0]
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    keys = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(keys | change))
    (found,) = check_pair(tmp_path, None, CheckOptions()).reasons
    assert reason in found
    with pytest.raises(UnsupportedModel) as caught:
        TransformersModel.load(TransformersConfig.load(tmp_path), device=CPU)
    assert str(caught.value) == found


def test_a_model_of_a_gpu_is_audited_as_one_of_a_cpu(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device, and before weights are read."""
    monkeypatch.setattr(mixture_replacement, "has_shared_expert_gate", lambda _: False)
    monkeypatch.setattr(model_module, "load_network", None)
    config = TransformersConfig.load(make_model("qwen2_moe")[0])
    with shadow_cuda(), pytest.raises(UnsupportedModel, match="sigmoid in layers"):
        TransformersModel.load(config, device=torch.device("cuda"))


def test_a_layer_that_differs_from_the_layer_map_is_refused() -> None:
    view = ProbeView(LayerMap.uniform(2, kv_heads=2, head_dim=8, windows=[None, 4]))
    q, k = torch.ones(3, 4, 8), torch.ones(3, 2, 8)
    assert view.attend(0, q, k, k).shape == (3, 4, 8)
    with pytest.raises(UnsupportedModel, match=r"layer 1 .*8, None, None\).*8, 4, None\)"):
        view.attend(1, q, k, k)
    assert view.attend(1, q, k, k, AttentionParams(sliding_window=4)).shape == (3, 4, 8)
    with pytest.raises(UnsupportedModel, match="layer 0"):
        view.attend(0, q, k[:, :1], k)


def test_attention_parameters_are_those_of_the_call() -> None:
    assert read_params({"scaling": 16**-0.5, "dropout": 0.0}, 16) is DEFAULT_ATTENTION
    sinks = torch.zeros(4, dtype=torch.bfloat16)
    arguments = {"scaling": 0.5, "softcap": 30.0, "sliding_window": 7, "s_aux": sinks}
    params = read_params(arguments, 16)
    assert (params.scale, params.logit_softcap, params.sliding_window) == (0.5, 30.0, 7)
    assert params.sinks is not None
    assert params.sinks.dtype == torch.float32
    chunked = read_params({"scaling": 16**-0.5}, 16, chunk_size=32)
    assert (chunked.attention_chunk_size, chunked.scale) == (32, None)


@pytest.mark.parametrize(
    ("mask", "arguments", "is_causal", "error"),
    [
        (None, {"position_bias": 1}, True, "unknown arguments position_bias"),
        (torch.ones(1), {}, True, "does not attend causally"),
        (None, {}, False, "does not attend causally"),
    ],
)
def test_attention_that_would_be_incomplete_is_refused(
    mask: Tensor | None, arguments: dict[str, Any], is_causal: bool, error: str
) -> None:
    module = nn.Module()
    module.is_causal = is_causal  # type: ignore[assignment]
    rows = torch.ones(1, 2, 3, 8)
    attention = PagedAttention(ForwardState(), 0, "layers.0.self_attn")
    with pytest.raises(UnsupportedModel, match=error):
        attention(module, rows, rows, rows, mask, arguments)


def test_config_refuses_an_unsupported_quantization(tmp_path: Path, make_model: MakeModel) -> None:
    keys = json.loads((make_model("qwen3")[0] / "config.json").read_text())
    keys["quantization_config"] = {"quant_method": "bitsandbytes"}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(Exception, match=r"quant_method is 'bitsandbytes'.*unquantized"):
        TransformersConfig.load(tmp_path)
