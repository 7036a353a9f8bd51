"""Routers and experts of transformers are recognised by what they compute, and replaced."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.hunyuan_v1_moe.modeling_hunyuan_v1_moe import HunYuanMoEV1Gate
from transformers.models.hy_v3.modeling_hy_v3 import HYV3TopKRouter
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeTopKRouter

from checks.zoo.models import ZooModel, randomise
from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.routed_experts import RoutedShape
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.attention import ForwardState
from specdecode_engine.model.transformers.input_scaled_mixture import recognise_input_scaled
from specdecode_engine.model.transformers.mixture_recognition import (
    recognise_experts,
    recognise_router,
)
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_engine.model.transformers.replacement import Replacer
from specdecode_engine.model.transformers.shared_expert_gate import has_shared_expert_gate
from specdecode_kernels import GatedActivation, RoutingConfig, choose_backend
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")
ONE_TABLE = RotaryLimits((16,), 16)
PLAIN = Linears()
PACKED = Linears.of(choose_backend("auto", CPU, torch.float32, 16))

ROUTERS: dict[str, tuple[Callable[[Any], nn.Module], RoutingConfig | None]] = {
    "qwen3_moe": (
        Qwen3MoeTopKRouter,
        RoutingConfig(top_k=3, scores="softmax", is_normalized=True),
    ),
    "olmoe": (OlmoeTopKRouter, RoutingConfig(top_k=3, scores="softmax")),
    "gpt_oss": (GptOssTopKRouter, None),
    "glm4_moe": (
        Glm4MoeTopkRouter,
        RoutingConfig(
            top_k=3, scores="sigmoid", is_normalized=True, scale=1.5, num_groups=4, top_groups=2
        ),
    ),
    "minimax_m2": (
        MiniMaxM2TopKRouter,
        RoutingConfig(top_k=3, scores="sigmoid", is_normalized=True),
    ),
    "ernie4_5_moe": (
        Ernie4_5_MoeTopKRouter,
        RoutingConfig(top_k=3, scores="softmax", is_normalized=True),
    ),
    "hunyuan_v1_moe": (
        HunYuanMoEV1Gate,
        RoutingConfig(top_k=3, scores="softmax", is_normalized=True),
    ),
    "hy_v3": (
        HYV3TopKRouter,
        RoutingConfig(top_k=3, scores="sigmoid", is_normalized=True, scale=1.5),
    ),
    "phimoe": (PhimoeTopKRouter, RoutingConfig(top_k=2, scores="sparsemixer", jitter=0.01)),
    "gemma4_moe": (Gemma4TextRouter, None),
}

KEPT = {
    "qwen3_moe": RoutedShape(layers=2, top_k=3, num_experts=8),
    "gpt_oss": RoutedShape(layers=3, top_k=3, num_experts=8),
    "glm4_moe": RoutedShape(layers=2, top_k=3, num_experts=12),
    "mixtral": RoutedShape(layers=3, top_k=2, num_experts=6),
    "minimax_m2": RoutedShape(layers=3, top_k=3, num_experts=8),
    "olmoe": RoutedShape(layers=3, top_k=3, num_experts=8),
    "phimoe": RoutedShape(layers=3, top_k=2, num_experts=6),
    "gemma4_moe": RoutedShape(layers=4, top_k=3, num_experts=8),
    "llama4_text": RoutedShape(layers=2, top_k=2, num_experts=6),
    "ernie4_5_moe": RoutedShape(layers=2, top_k=3, num_experts=8),
    "hunyuan_v1_moe": RoutedShape(layers=3, top_k=3, num_experts=8),
    "afmoe": RoutedShape(layers=3, top_k=3, num_experts=8),
}


def make_config(model: ZooModel) -> Any:
    return AutoConfig.for_model(model.model_type, **model.keys)


def replaced(
    module: nn.Module, linears: Linears = PLAIN, dtype: torch.dtype = torch.float32
) -> nn.Module:
    parent = nn.Module()
    parent.child = module
    Replacer(linears, dtype, CPU, ONE_TABLE, ForwardState()).replace_children(parent)
    assert isinstance(parent.child, RowModule)
    return parent.child


def dense(ids: Tensor, weights: Tensor) -> Tensor:
    """Factors of all experts, 0 for those that were not chosen."""
    return torch.zeros(len(ids), 12).scatter(1, ids.long(), weights.float())


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_choose_the_experts_of_transformers(name: str, models: dict[str, ZooModel]) -> None:
    kind, config = ROUTERS[name]
    router = kind(make_config(models[name])).eval()
    randomise(router, seed=0)
    if config is not None:
        found = recognise_router(router)
        assert found is not None
        assert found.config == config
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    has_bias = name in ("minimax_m2", "hy_v3")
    arguments = (x, torch.linspace(-0.2, 0.2, 8)) if has_bias else (x,)
    with torch.no_grad():
        _, weights, ids = router(*arguments)
        _, got_weights, got_ids = replaced(router, PACKED)(*arguments)
    torch.testing.assert_close(dense(got_ids, got_weights), dense(ids, weights))


class FlatRouter(Qwen3MoeTopKRouter):
    """Looks like a router of Qwen3-MoE and gives every expert the same factor."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = super().forward(hidden_states)
        return logits, torch.full_like(weights, 0.5), ids


def test_a_router_of_another_kind_is_left_as_it_is(models: dict[str, ZooModel]) -> None:
    assert recognise_router(FlatRouter(make_config(models["qwen3_moe"]))) is None
    assert recognise_router(nn.LayerNorm(3)) is None


def test_logits_stay_float32_where_the_router_computes_them_so(
    models: dict[str, ZooModel],
) -> None:
    wide = Glm4MoeTopkRouter(make_config(models["glm4_moe"])).to(torch.bfloat16)
    narrow = Qwen3MoeTopKRouter(make_config(models["qwen3_moe"])).to(torch.bfloat16)
    kept = HunYuanMoEV1Gate(make_config(models["hunyuan_v1_moe"]))  # its weight is float32
    x = torch.zeros(2, 64, dtype=torch.bfloat16)
    routers = [replaced(one, PLAIN, torch.bfloat16) for one in (wide, narrow, kept)]
    types = [router(x)[0].dtype for router in routers]
    assert types == [torch.float32, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("linears", [PLAIN, PACKED], ids=["plain", "packed"])
@pytest.mark.parametrize(
    ("name", "kind"), [("qwen3_moe", Qwen3MoeExperts), ("gpt_oss", GptOssExperts)]
)
def test_experts_compute_what_those_of_transformers_do(
    name: str, kind: Callable[[Any], nn.Module], linears: Linears, models: dict[str, ZooModel]
) -> None:
    config = make_config(models[name])
    config._experts_implementation = "eager"
    experts = kind(config)
    randomise(experts, seed=0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 64, generator=generator) * 3  # far enough for limits
    ids = torch.rand(30, 8, generator=generator).argsort(dim=1)[:, :3]
    weights = torch.rand(30, 3, generator=generator)
    with torch.no_grad():
        wanted = experts(x, ids, weights)
        got = replaced(experts, linears)(x, ids, weights)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("linears", [PLAIN, PACKED], ids=["plain", "packed"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_factors_of_llama_4_multiply_what_experts_read(
    top_k: int, linears: Linears, models: dict[str, ZooModel]
) -> None:
    config = make_config(models["llama4_text"])
    config.num_experts_per_tok = top_k
    mixture = Llama4TextMoe(config)
    randomise(mixture, seed=0)
    x = torch.randn(1, 30, 64, generator=torch.Generator().manual_seed(0))
    recorded: list[Tensor] = []
    with torch.no_grad():
        wanted, wanted_logits = mixture(x)
        ours: Any = replaced(mixture, linears)
        ours.experts.record = recorded.append
        got, logits = ours(x)
    (ids,) = recorded
    chosen = wanted_logits.topk(top_k, dim=1).indices
    assert torch.equal(ids.long().sort(dim=1).values, chosen.sort(dim=1).values)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits, wanted_logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("linears", [PLAIN, PACKED], ids=["plain", "packed"])
def test_gates_of_shared_experts_are_those_of_transformers(
    linears: Linears, models: dict[str, ZooModel]
) -> None:
    config = make_config(models["qwen2_moe"])
    config._experts_implementation = "eager"
    mixture = Qwen2MoeSparseMoeBlock(config)
    randomise(mixture, seed=0)
    x = torch.randn(1, 30, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = mixture(x)
        ours = replaced(mixture, linears)
        torch.testing.assert_close(ours(x), wanted, atol=1e-4, rtol=1e-4)
        alone = ours(x[:, 7:8])
    assert torch.equal(alone, ours(x)[:, 7:8])


def test_a_shared_expert_with_another_gate_is_not_recognised(models: dict[str, ZooModel]) -> None:
    class Doubled(Qwen2MoeSparseMoeBlock):
        def forward(self, hidden_states: Tensor) -> Tensor:
            mixed: Tensor = super().forward(hidden_states)
            return 2 * mixed

    mixture: Any = Doubled(make_config(models["qwen2_moe"]))
    assert not has_shared_expert_gate(mixture)
    mixture.__class__ = Qwen2MoeSparseMoeBlock
    assert has_shared_expert_gate(mixture)


def test_a_mixture_that_scales_otherwise_is_not_recognised(models: dict[str, ZooModel]) -> None:
    class Doubled(Llama4TextMoe):
        def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
            out, logits = super().forward(hidden_states)
            return 2 * out, logits

    mixture: Any = Doubled(make_config(models["llama4_text"]))
    assert recognise_input_scaled(mixture) is None
    mixture.__class__ = Llama4TextMoe
    assert recognise_input_scaled(mixture) is not None
    mixture.top_k = 7
    assert recognise_input_scaled(mixture) is None, "there are six experts"


@pytest.mark.parametrize("name", KEPT)
def test_the_experts_of_every_mixture_are_found(name: str, make_model: MakeModel) -> None:
    """Those that are returned: of each layer with a router, and of no expert that every row has."""
    config = TransformersConfig.load(make_model(name)[0])
    model = TransformersModel.load(config, device=CPU)
    assert RoutedShape.of(model) == KEPT[name]
    assert all(experts.record is None for experts in model.mixtures)


def test_a_dense_model_has_no_experts_to_return(make_model: MakeModel) -> None:
    config = TransformersConfig.load(make_model("gemma2")[0])
    assert RoutedShape.of(TransformersModel.load(config, device=CPU)) is None


def test_gates_are_recognised_with_their_limits(models: dict[str, ZooModel]) -> None:
    found = recognise_experts(GptOssExperts(make_config(models["gpt_oss"])))
    assert found is not None
    assert found.activation == GatedActivation("swigluoai", 1.702, 7.0)
    assert (found.is_interleaved, found.is_transposed) == (True, True)


def test_experts_with_another_gate_are_left_as_they_are(models: dict[str, ZooModel]) -> None:
    experts: Any = Qwen3MoeExperts(make_config(models["qwen3_moe"]))
    experts.act_fn = nn.Tanh()
    assert recognise_experts(experts) is None
    assert recognise_experts(nn.Linear(2, 2)) is None
