"""Attention modules are recognised by what they compute, and computed with few calls."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from checks.zoo.logits import TOLERANCE, PagedTexts, worst_differences
from checks.zoo.models import ZooModel
from specdecode_engine.model.layers import layers
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers.attention import IMPLEMENTATION, register
from specdecode_engine.model.transformers.attention_form import (
    NormPlace,
    Rotation,
    Temperature,
    recognise_attention,
)
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.transformers.modules import (
    LayerList,
    RotaryRows,
    RotaryTable,
    RowRmsNorm,
)
from specdecode_engine.model.transformers.row_attention import QueryFactors, RowAttention
from specdecode_engine.model.transformers.row_layer import RowDecoderLayer, recognise_layer
from specdecode_kernels import DEFAULT_ATTENTION, choose_backend
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")
NOWHERE, ROWS, HEADS, ROTATED = NormPlace
NONE, HALVES, PAIRS = Rotation


def attention_modules(model: ZooModel) -> list[Any]:
    """Return the attention of every layer of transformers' model, as it is before replacement."""
    register()
    auto: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(model.model_type, **model.keys)
    whole = auto.from_config(config, attn_implementation=IMPLEMENTATION).eval()
    return [layer.self_attn for layer in whole.model.layers]


@pytest.mark.parametrize(
    ("name", "place", "rotations"),
    [
        ("llama", NOWHERE, [HALVES, HALVES, HALVES]),
        ("qwen3", HEADS, [HALVES, HALVES, HALVES]),
        ("olmo2", ROWS, [HALVES, HALVES, HALVES]),
        ("hunyuan_v1_dense", ROTATED, [HALVES, HALVES, HALVES]),
        ("exaone4", HEADS, [HALVES, HALVES, HALVES, NONE]),
    ],
)
def test_norms_and_rotation_are_found(
    name: str, place: NormPlace, rotations: list[Rotation], models: dict[str, ZooModel]
) -> None:
    forms = [recognise_attention(module) for module in attention_modules(models[name])]
    assert [form and (form.norm_place, form.rotation, form.temperature) for form in forms] == [
        (place, rotation, None) for rotation in rotations
    ]


def test_rotated_pairs_and_temperatures_of_llama_4_are_found(models: dict[str, ZooModel]) -> None:
    modules = attention_modules(models["llama4_text"])
    forms = [recognise_attention(module) for module in modules]
    rotated = (ROTATED, PAIRS, None)
    plain = (NOWHERE, NONE, Temperature(4, 0.3, offset=1))
    assert [form and (form.norm_place, form.rotation, form.temperature) for form in forms] == [
        rotated, rotated, plain, rotated
    ]  # fmt: skip
    modules[2].attn_temperature_tuning = False
    untuned = recognise_attention(modules[2])
    assert untuned is not None
    assert untuned.temperature is None
    modules[2].attn_temperature_tuning, modules[2].floor_scale = True, 2.5
    assert recognise_attention(modules[2]) is None, "only whole intervals are computed"


@pytest.mark.parametrize("offset", [0, 1])
def test_temperatures_grow_by_whole_intervals(offset: int) -> None:
    found = QueryFactors.of(Temperature(3, 0.5, offset), 11, CPU)
    q = torch.ones(11, 2, 4, dtype=torch.bfloat16)
    got = found.multiply(q, torch.arange(11))
    wanted = [1 + 0.5 * math.log(1 + (position + offset) // 3) for position in range(11)]
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got[:, 1, 3], torch.tensor(wanted).bfloat16())


def test_temperatures_of_rotated_queries_are_found(models: dict[str, ZooModel]) -> None:
    """Ministral 3 declares them among its angles."""
    module = attention_modules(models["ministral3"])[1]
    form = recognise_attention(module)
    assert form is not None
    assert (form.rotation, form.temperature) == (HALVES, Temperature(16, 0.1, offset=0))
    assert module.config.rope_parameters["original_max_position_embeddings"] == 16


def test_gates_of_attention_are_found(models: dict[str, ZooModel]) -> None:
    """AFMoE scales what its queries read, and rotates in layers with a window only."""
    modules = attention_modules(models["afmoe"])
    forms = [recognise_attention(module) for module in modules]
    assert [form and (form.gate, form.norm_place, form.rotation) for form in forms] == [
        ("gate_proj", HEADS, rotation) for rotation in (HALVES, NONE, HALVES, NONE)
    ]
    modules[0].gate_proj = torch.nn.Linear(64, 1, bias=False)
    assert recognise_attention(modules[0]) is None, "one number for a whole row"


def test_parameters_of_attention_are_those_of_each_module(models: dict[str, ZooModel]) -> None:
    forms = [recognise_attention(module) for module in attention_modules(models["gemma2"])]
    params = [form.params for form in forms if form]
    assert [one.sliding_window for one in params] == [16, None, 16]
    assert {(one.scale, one.logit_softcap) for one in params} == {(24**-0.5, 5.0)}
    plain = recognise_attention(attention_modules(models["llama"])[0])
    assert plain is not None
    assert plain.params is DEFAULT_ATTENTION


@pytest.mark.parametrize("name", ["cohere", "stablelm", "phi3", "gemma4_text"])
def test_other_rotations_and_maps_are_left_as_they_are(
    name: str, models: dict[str, ZooModel]
) -> None:
    assert recognise_attention(attention_modules(models[name])[0]) is None


def double_inputs(module: Any, inputs: Tensor) -> Tensor:
    return 2 * inputs


def attend_to_keys(module: Any, inputs: Tensor) -> Tensor:
    module.v_proj = module.k_proj
    return inputs


def swap_norms(module: Any, inputs: Tensor) -> Tensor:
    module.q_norm, module.k_norm = module.k_norm, module.q_norm
    return inputs


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("change", [double_inputs, attend_to_keys, swap_norms, None])
def test_attention_that_computes_anything_else_is_not_recognised(
    factor: float, change: Callable[[Any, Tensor], Tensor] | None, models: dict[str, ZooModel]
) -> None:
    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: Any,
        attention_mask: Any,
        **arguments: Any,
    ) -> Any:
        inputs = hidden_states if change is None else change(self, hidden_states)
        output, _ = Qwen3Attention.forward(self, inputs, position_embeddings, attention_mask)
        return factor * output, None

    module = attention_modules(models["qwen3"])[0]
    module.__class__ = type("Changed", (Qwen3Attention,), {"forward": forward})
    is_changed = factor != 1.0 or change is not None
    assert (recognise_attention(module) is None) == is_changed


@pytest.mark.parametrize(
    ("name", "count", "has_gate"), [("nemotron", 3, False), ("qwen3_5_text", 1, True)]
)
def test_a_rotation_of_a_part_of_each_head_is_one_of_halves(
    name: str, count: int, has_gate: bool, make_model: MakeModel
) -> None:
    """Qwen3.5 has the gate of each head after its query, in one map."""
    folder, reference = make_model(name)
    model = load(folder, Linears())
    found = [one for one in model.network.modules() if isinstance(one, RowAttention)]
    assert len(found) == count
    assert all((one.gate is not None) == has_gate for one in found)
    differences = worst_differences(reference, model)
    assert all(difference <= TOLERANCE for difference in differences.values()), differences


def load(folder: Path, linears: Linears) -> TransformersModel:
    return TransformersModel.load(TransformersConfig.load(folder), device=CPU, linears=linears)


def compute(model: Any, reference: TransformersModel, linears: Linears) -> Tensor:
    """Return logits of a prefill and then of one row of each text."""
    texts = PagedTexts.make(reference, 4, linears.ops)
    ids = torch.randint(6, 97, (2, 20), generator=torch.Generator().manual_seed(0))
    positions, view = texts.spans([(0, 0, 19), (1, 0, 19)])
    prefill = model.logits(model.forward(ids[:, :19].flatten(), positions, view)[0])
    positions, view = texts.spans([(0, 19, 20), (1, 19, 20)])
    return torch.cat((prefill, model.logits(model.forward(ids[:, 19], positions, view)[0])))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_both_implementations_have_the_same_bits(name: str, make_model: MakeModel) -> None:
    folder = make_model(name)[0]
    linears = Linears.of(choose_backend("auto", CPU, torch.float32, 16))
    native = Llama.load(folder, device=CPU, linears=linears)
    model = load(folder, linears)
    assert torch.equal(compute(model, model, linears), compute(native, model, linears))


def test_no_module_of_the_native_implementation_is_used(make_model: MakeModel) -> None:
    model = load(make_model("llama")[0], Linears())
    native = (layers.Attention, layers.Mlp, layers.DecoderLayer, layers.Norm, layers.QkNorm)
    held = [value for module in model.network.modules() for value in vars(module).values()]
    assert any(isinstance(value, layers.Linear) for value in held)  # the maps themselves
    assert not any(isinstance(value, native) for value in held)
    assert {type(layer).__name__ for layer in model._layers} == {"RowDecoderLayer"}


def test_an_argument_that_was_not_recognised_is_refused(make_model: MakeModel) -> None:
    module = load(make_model("llama")[0], Linears())._layers[1].attention
    assert isinstance(module, RowAttention)
    module.is_checked = False
    rows = torch.zeros(1, 2, 64)
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.self_attn .* softcap by its layer"):
        module(hidden_states=rows, softcap=3.0, use_cache=False)
    with pytest.raises(UnsupportedModel, match="attention_mask"):
        module(rows, None, rows)


def test_rotary_rows_are_pairs_for_modules_and_halves_for_ops() -> None:
    cos, sin = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    doubled: dict[str | None, tuple[Tensor, Tensor]] = {
        None: (torch.cat((cos, cos), dim=1), torch.cat((sin, sin), dim=1))
    }
    table = RotaryTable(doubled, torch.bfloat16)
    assert table.angles_of_halves() == {3}
    rows = table(torch.zeros(1), torch.tensor([[4, 20]]))  # past the end: the last row
    assert rows.halves is not None
    torch.testing.assert_close(rows.halves[0], cos[[4, 8]])
    first, second = rows
    assert first.dtype == torch.bfloat16
    torch.testing.assert_close(first, doubled[None][0][[4, 8]][None].bfloat16())
    torch.testing.assert_close(second, rows[1])
    other = RotaryTable({None: (torch.randn(9, 6), torch.randn(9, 6))}, torch.float32)
    assert other.angles_of_halves() == {None}
    assert isinstance(other(cos, torch.tensor([[1]])), RotaryRows)
    assert other(cos, torch.tensor([[1]])).halves is None
    assert rows.rows.tolist() == [4, 8]


@pytest.mark.parametrize(
    "take", [lambda some: some[:3], lambda some: some[:9], lambda some: some[0:]]
)
def test_a_slice_of_all_layers_is_the_list(take: Callable[[LayerList], object]) -> None:
    some = LayerList([nn.Identity(), nn.Identity(), nn.Identity()])
    assert take(some) is some
    assert len(some[1:]) == 2
    assert some[1] is list(some)[1]


def test_modules_of_ours_call_hooks_only_while_there_are_any() -> None:
    norm, calls = RowRmsNorm(Linears().ops, None, 1e-6), []
    handle = norm.register_forward_hook(lambda *_: calls.append(1))
    norm(torch.ones(1, 2, 4))
    handle.remove()
    norm(torch.ones(1, 2, 4))
    assert calls == [1]


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [("llama", True), ("qwen3", True), ("granite", False), ("olmo2", False), ("gemma2", False)],
)
def test_layers_of_the_usual_order_are_replaced_whole(
    name: str, is_whole: bool, make_model: MakeModel
) -> None:
    """Granite scales what it adds, OLMo 2 norms it; Gemma 2 has an MLP of another kind."""
    model = load(make_model(name)[0], Linears())
    assert {isinstance(layer, RowDecoderLayer) for layer in model._layers} == {is_whole}


def test_a_layer_that_adds_in_another_order_is_left_as_it_is(make_model: MakeModel) -> None:
    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
        position_embeddings: Any = None,
    ) -> Any:
        normal = LlamaDecoderLayer.forward
        return 2 * normal(self, hidden_states, position_embeddings=position_embeddings)

    whole: Any = load(make_model("llama")[0], Linears())._layers[0]
    config: Any = AutoConfig.for_model("llama", hidden_size=64)
    layer = LlamaDecoderLayer(config, 0)
    layer._modules = {
        "self_attn": whole.attention,
        "mlp": whole.mlp,
        "input_layernorm": whole.input_norm,
        "post_attention_layernorm": whole.mlp_norm,
    }
    assert recognise_layer(layer) is not None
    layer.__class__ = type("Doubled", (LlamaDecoderLayer,), {"forward": forward})
    assert recognise_layer(layer) is None
