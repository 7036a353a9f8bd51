"""Latent attention is recognised by what a module computes, and cached as latents alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from specdecode_engine.model.kv.kv_cache import KVCache, kv_bytes
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers import latent_form, replacement
from specdecode_engine.model.transformers.attention_form import Rotation
from specdecode_engine.model.transformers.latent_form import (
    LatentForm,
    recognise_latent_attention,
)
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.transformers.row_latent_attention import RowLatentAttention
from specdecode_kernels import FLOAT8
from specdecode_kernels.torch.elementwise import rotate
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")
ROTATIONS = {
    "deepseek_v2": Rotation.PAIRS,
    "deepseek_v3": Rotation.PAIRS,
    "glm4_moe_lite": Rotation.PAIRS,
    "minicpm3": Rotation.HALVES,
    "youtu": Rotation.HALVES,
}


def forms_of(name: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Load a model and return what was recognised, layer by layer."""
    found: list[LatentForm | None] = []

    def recognise(module: nn.Module) -> LatentForm | None:
        found.append(recognise_latent_attention(module))
        return found[-1]

    monkeypatch.setattr(replacement, "recognise_latent_attention", recognise)
    model = TransformersModel.load(TransformersConfig.load(make_model(name)[0]), device=CPU)
    assert sum(isinstance(one, RowLatentAttention) for one in model.network.modules()) == 3
    return found


@pytest.mark.parametrize("name", ROTATIONS)
def test_every_module_is_recognised_with_its_rotation(
    name: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: on the meta device, and with weights."""
    forms = forms_of(name, make_model, monkeypatch)
    assert [form.rotation for form in forms] == [ROTATIONS[name]] * 6
    assert [form.heads for form in forms] == [4] * 6


def test_the_scale_is_that_of_yarn(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squared mscale of mscale_all_dim and factor 16, over the root of a head's 20 numbers."""
    forms = forms_of("deepseek_v3", make_model, monkeypatch)
    wanted = (0.1 * 0.9 * torch.tensor(16.0).log().item() + 1) ** 2 * 20**-0.5
    assert all(form.params.scale == pytest.approx(wanted) for form in forms)


def test_a_module_that_computes_anything_else_is_refused(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are turned the other way."""
    monkeypatch.setattr(latent_form, "rotate", lambda x, cos, sin: rotate(x, cos, -sin))
    config = TransformersConfig.load(make_model("deepseek_v3")[0])
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.self_attn does not compute multi-head"):
        TransformersModel.load(config, device=CPU)


@pytest.mark.parametrize("change", ["norm", "bias", "width", "child", "size"])
def test_other_children_are_not_recognised(
    change: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reference = make_model("deepseek_v3")
    module = reference.model.layers[0].self_attn
    children: dict[str, dict[str, nn.Module]] = {
        "norm": {"kv_a_layernorm": nn.Linear(24, 24)},
        "bias": {"kv_b_proj": nn.Linear(24, 4 * 32)},
        "width": {"o_proj": nn.Linear(64, 64)},
        "child": {"indexer": nn.Identity()},
        "size": {},
    }
    if change == "size":
        monkeypatch.setattr(module, "v_head_dim", 19)
    monkeypatch.setattr(module, "_modules", {**module._modules, **children[change]})
    assert recognise_latent_attention(module) is None


def test_another_norm_of_latents_is_refused(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement.Replacer, "_norm", lambda *_: None)
    config = TransformersConfig.load(make_model("youtu")[0])
    with pytest.raises(UnsupportedModel, match="is not an RMS norm"):
        TransformersModel.load(config, device=CPU)


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT8], ids=str)
def test_a_cache_of_latents_is_one_tensor(dtype: torch.dtype, make_model: MakeModel) -> None:
    """Rows that are written, read back, moved and cleared are those of keys."""
    layer_map = TransformersConfig.load(make_model("deepseek_v3")[0]).layer_map
    cache = KVCache(layer_map, 5, 4, dtype, CPU)
    (group,) = cache.groups
    assert (group.k.shape, group.v.shape) == ((3, 20, 1, 32), (3, 20, 1, 24))
    assert group.v.untyped_storage().data_ptr() == group.k.untyped_storage().data_ptr()
    assert cache.num_bytes == kv_bytes(layer_map, 20, dtype) == 3 * 20 * 32 * dtype.itemsize
    slots, k = torch.tensor([4, 5, 6, 7]), torch.arange(4.0)[:, None, None].expand(4, 1, 32)
    for layer in range(3):
        cache.store(layer, slots, k, k[..., :24])
        read_k, read_v = cache.as_stored(layer, slots, k, k[..., :24])
        assert torch.equal(read_k, k)
        assert torch.equal(read_v, k[..., :24])
    path = torch.tensor([[0, 2, 3]])
    cache.compact(torch.tensor([[1, 2]]), torch.tensor([0]), torch.tensor([0]), path)
    assert group.k[:, 4:8, 0, 31].float().tolist() == [[0.0, 2.0, 3.0, 3.0]] * 3
    assert group.v[:, 4:8, 0, 0].float().tolist() == [[0.0, 2.0, 3.0, 3.0]] * 3
    cache.clear(torch.tensor([5]))
    cache.clear_layer(1, torch.tensor([6]))
    assert group.k[:, 4:8].float().sum(dim=(2, 3)).tolist() == [
        [0.0, 0.0, 96.0, 96.0],
        [0.0, 0.0, 0.0, 96.0],
        [0.0, 0.0, 96.0, 96.0],
    ]


def test_layers_with_latents_and_without_have_groups_of_their_own(make_model: MakeModel) -> None:
    (shape,) = TransformersConfig.load(make_model("deepseek_v3")[0]).layer_map.shapes
    assert shape.width == 32
    assert replace(shape, is_latent=False).width == 56
