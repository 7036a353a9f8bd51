"""Norms and MLPs are recognised by what they compute."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP, Gemma3RMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.phi3.modeling_phi3 import Phi3MLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from checks.zoo.models import ZooModel, randomise
from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.transformers.attention import ForwardState
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_engine.model.transformers.recognition import (
    MlpNames,
    NormKind,
    recognise_mlp,
    recognise_norm,
)
from specdecode_engine.model.transformers.replacement import Replacer, is_silu

CPU = torch.device("cpu")
ONE_TABLE = RotaryLimits((16,), 16)

NORMS: list[tuple[nn.Module, NormKind]] = [
    (LlamaRMSNorm(12, 1e-3), NormKind(is_centred=False, adds_one=False)),
    (Gemma3RMSNorm(12, 1e-3), NormKind(is_centred=False, adds_one=True)),
    (Gemma4RMSNorm(12, 1e-3, with_scale=False), NormKind(is_centred=False, adds_one=False)),
    (CohereLayerNorm(12, 1e-3), NormKind(is_centred=True, adds_one=False)),
    (CohereLayerNorm((4, 12), 1e-3), NormKind(is_centred=True, adds_one=False)),
    (OlmoLayerNorm(12), NormKind(is_centred=True, adds_one=False)),
    (NemotronLayerNorm1P(12, eps=1e-3), NormKind(is_centred=True, adds_one=True)),
    (nn.LayerNorm(12, eps=1e-3), NormKind(is_centred=True, adds_one=False)),
]


@pytest.mark.parametrize(("norm", "kind"), NORMS, ids=lambda value: type(value).__name__)
def test_norms_are_recognised_and_replaced(norm: nn.Module, kind: NormKind) -> None:
    assert recognise_norm(norm) == kind
    randomise(norm, seed=0)
    parent = nn.Module()
    parent.norm = norm
    Replacer(Linears(), torch.float32, CPU, ONE_TABLE, ForwardState()).replace_children(parent)
    x = torch.randn(1, 5, 4, 12, generator=torch.Generator().manual_seed(0))
    assert isinstance(parent.norm, RowModule)
    torch.testing.assert_close(parent.norm(x), norm(x), atol=1e-5, rtol=1e-5)


class AbsoluteNorm(LlamaRMSNorm):
    """Looks like a root-mean-square norm and is none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / x.abs().mean(-1, keepdim=True)


def test_a_norm_of_another_kind_is_left_as_it_is() -> None:
    assert recognise_norm(AbsoluteNorm(12)) is None
    assert recognise_norm(nn.Linear(3, 3)) is None


def make_config(model: ZooModel) -> Any:
    return AutoConfig.for_model(model.model_type, **model.keys)


def make_mlp(kind: type[nn.Module], model: ZooModel) -> nn.Module:
    mlp = kind(make_config(model))
    randomise(mlp, seed=0)
    return mlp


@pytest.mark.parametrize(
    ("kind", "model_type", "names"),
    [
        (LlamaMLP, "llama", MlpNames(("gate_proj", "up_proj"), "down_proj", "act_fn")),
        (Phi3MLP, "phi3", MlpNames(("gate_up_proj",), "down_proj", "activation_fn")),
    ],
)
def test_gated_mlps_are_fused(
    kind: type[nn.Module], model_type: str, names: MlpNames, models: dict[str, ZooModel]
) -> None:
    parent = nn.Module()
    mlp = parent.mlp = make_mlp(kind, models[model_type])
    assert recognise_mlp(mlp, is_silu) == names
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    expected = mlp(x)  # the weights of fused parts are given away
    Replacer(Linears(), torch.float32, CPU, ONE_TABLE, ForwardState()).replace_children(parent)
    assert type(parent.mlp).__name__ == "RowGatedMlp"
    torch.testing.assert_close(parent.mlp(x), expected, atol=1e-5, rtol=1e-5)


def test_an_mlp_with_another_activation_keeps_its_parts(models: dict[str, ZooModel]) -> None:
    parent = nn.Module()
    mlp = parent.mlp = make_mlp(Gemma3MLP, models["gemma3_text"])
    assert recognise_mlp(mlp, is_silu) is None
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    expected = mlp(x)
    Replacer(Linears(), torch.float32, CPU, ONE_TABLE, ForwardState()).replace_children(parent)
    assert all(isinstance(child, RowModule) for child in mlp.children())
    torch.testing.assert_close(parent.mlp(x), expected, atol=1e-5, rtol=1e-5)


def test_projections_of_one_input_are_one_map(models: dict[str, ZooModel]) -> None:
    attention = Qwen2Attention(make_config(models["qwen2"]), layer_idx=0)
    randomise(attention, seed=0)
    x, other = torch.randn(2, 1, 5, 64, generator=torch.Generator().manual_seed(0))
    names = ("v_proj", "q_proj", "k_proj", "k_proj")
    maps = {name: attention.get_submodule(name) for name in names}
    expected = [maps[name](rows) for rows in (x, other) for name in names]
    parent = nn.Module()
    parent.attention = attention
    Replacer(Linears(), torch.float32, CPU, ONE_TABLE, ForwardState()).replace_children(parent)
    parts = [attention.get_submodule(name) for name in names]
    assert all(type(part).__name__ == "RowLinearPart" for part in parts)
    for part, wanted in zip([p(rows) for rows in (x, other) for p in parts], expected, strict=True):
        torch.testing.assert_close(part, wanted, atol=1e-5, rtol=1e-5)
