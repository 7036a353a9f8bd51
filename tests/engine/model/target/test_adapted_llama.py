"""Logits of LoRA adapters: those of an unmerged forward in float32."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from checks.harness.adapter_files import ATTENTION, EVERYWHERE, MLP, random_factors, write_adapter
from specdecode_api.boot.adapters import AdaptersBoot
from specdecode_engine.model.adapters.loading import LoadedAdapters, ReadAdapter, load_adapters
from specdecode_engine.model.adapters.pool import AdapterPool
from specdecode_engine.model.checkpoint.adapters.adapter import Adapter, Factors
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.implementations import load_model, read_config
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.adapted_llama import adapted_llama
from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.adapter_memory import packed_bytes
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.llama import Llama
from specdecode_kernels import choose_backend

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    # Embeddings are scaled by sqrt(96), which is not a power of two.
    "gemma3": (
        "Gemma3",
        {"sliding_window": 8, "query_pre_attn_scalar": 16, "hidden_size": 96},
    ),
}
ADAPTERS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "everywhere": (EVERYWHERE, {"r": 8}),
    "queries": (("q_proj",), {"lora_alpha": 11.3137, "use_rslora": True}),
    "values and gates": (("v_proj", "gate_proj"), {"alpha_pattern": {"v_proj": 2}}),
    "embedding": (("embed_tokens",), {}),
    "head": (("lm_head",), {}),
    "mlp": (MLP, {"r": 3}),
}
IDS = torch.tensor([(place * 37 + 11) % 101 for place in range(24)])


def save_model(folder: Path, family: str) -> Any:
    kind, keys = FAMILIES[family]
    text = "Gemma3Text" if kind == "Gemma3" else kind
    config = getattr(transformers, f"{text}Config")(**SIZES | keys)
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.1)
            parameter += "norm" in name
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def unmerged_logits(model: Any, factors: Mapping[str, Factors], ids: Tensor) -> Tensor:
    """Add each adapter's part to the output of its module, as peft does."""

    def of_linear(own: Factors) -> Any:
        return lambda _, inputs, out: out + (inputs[0] @ own.a.T @ own.b.T) * own.scale

    def of_embedding(own: Factors) -> Any:
        def hook(module: Any, inputs: tuple[Tensor], out: Tensor) -> Tensor:
            factor = getattr(module, "embed_scale", torch.tensor(1.0))
            return out + own.a.T[inputs[0]] @ own.b.T * own.scale * factor

        return hook

    hooks = [
        model.get_submodule(name).register_forward_hook(
            of_embedding(own) if name.endswith("embed_tokens") else of_linear(own)
        )
        for name, own in factors.items()
    ]
    logits: Tensor = model(ids[None]).logits[0]
    for hook in hooks:
        hook.remove()
    return logits


def packing(dtype: torch.dtype) -> Linears:
    return Linears.of(choose_backend("auto", CPU, dtype, 16))


def load_llama(
    folder: Path, config: LanguageModelConfig, dtype: torch.dtype, linears: Linears
) -> Llama:
    llama = load_model(
        folder,
        config,
        dtype=dtype,
        device=CPU,
        context_length=64,
        progress=None,
        open_store=open_checkpoint,
        linears=linears,
    )
    assert isinstance(llama, Llama)
    return llama


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_an_unmerged_forward(
    tmp_path: Path, texts: Any, family: str, is_packed: bool
) -> None:
    model = save_model(tmp_path / "base", family)
    folder, config = tmp_path / "base", read_config(tmp_path / "base")
    base = adapter_base(folder, config, open_checkpoint(folder))
    linears = packing(torch.float32) if is_packed else Linears()
    llama = load_llama(folder, config, torch.float32, linears)
    adapters = []
    for number, (name, (maps, keys)) in enumerate(ADAPTERS.items()):
        rank = int(str(keys.get("r", 4)))
        tensors = random_factors(folder, maps, rank=rank, seed=number, size=0.2)
        adapters.append(Adapter.read(write_adapter(tmp_path / name, tensors, keys), base))
    loaded = loaded_of(llama, base, adapters, linears)
    pool = AdapterPool(loaded, 1 + len(ADAPTERS))
    plain = unmerged_logits(model, {}, IDS)
    for slot in range(1 + len(ADAPTERS)):
        pool.open(slot, str(slot) if slot else "")
        rows = torch.full((len(IDS),), slot)
        logits = logits_of(pool, config, texts, rows)
        factors = adapters[slot - 1].factors if slot else {}
        expected = unmerged_logits(model, factors, IDS)
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
        with pool.applied(rows) as used:
            assert (used is llama) == (not slot)
        if slot:  # the adapter does something
            assert (expected - plain).abs().max() > 1e-3 * plain.abs().max()


@torch.no_grad()
def test_scaled_embeddings_in_16_bits_are_rounded_once(tmp_path: Path) -> None:
    save_model(tmp_path / "base", "gemma3")
    folder, config = tmp_path / "base", read_config(tmp_path / "base")
    llama = load_llama(folder, config, torch.bfloat16, packing(torch.bfloat16))
    assert llama.embedding_scale is not None
    base = adapter_base(folder, config, None)
    tensors = random_factors(folder, ("embed_tokens",))
    adapter = Adapter.read(write_adapter(tmp_path / "a", tensors), base)
    of_factors = Linears.of(choose_backend("auto", CPU, torch.float32, 16))
    pool = AdapterPool(loaded_of(llama, base, [adapter], of_factors), 2)
    pool.open(1, "1")
    own = adapter.factors["model.embed_tokens"]
    added = own.a.T[IDS] @ own.b.T * own.scale * llama.embedding_scale
    exact = llama.embed(IDS).float() + added
    for rows in (torch.ones_like(IDS), torch.arange(len(IDS)) % 2):
        with pool.applied(rows) as used:
            assert isinstance(used, Llama)
            found = used.embed(IDS).float()
        has_adapter = rows == 1
        assert torch.equal(found[~has_adapter], llama.embed(IDS).float()[~has_adapter])
        # Sums of float32 in another order may be on the other side of a tie.
        is_other = found != exact.bfloat16().float()
        assert is_other[has_adapter].float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("maps", [EVERYWHERE, ATTENTION, ("v_proj", "up_proj"), ("embed_tokens",)])
@pytest.mark.parametrize("rank", [1, 24])
def test_reported_memory_is_that_of_loaded_factors(
    tmp_path: Path, maps: tuple[str, ...], rank: int, dtype: torch.dtype
) -> None:
    save_model(tmp_path / "base", "llama")
    folder, config = tmp_path / "base", read_config(tmp_path / "base")
    llama = load_llama(folder, config, dtype, packing(dtype))
    path = write_adapter(tmp_path / "a", random_factors(folder, maps, rank=rank), {"r": rank})
    loaded = load_adapters(folder, llama, AdaptersBoot(modules={"a": str(path)}))
    assert loaded is not None
    base = adapter_base(folder, config, None)
    assert packed_bytes(Adapter.read(path, base).factors, base) == loaded.bytes


@pytest.mark.parametrize("maps", [EVERYWHERE, ATTENTION, ("v_proj", "up_proj"), ("embed_tokens",)])
@pytest.mark.parametrize("rank", [1, 5, 24])
def test_no_adapter_takes_more_than_its_place(
    tmp_path: Path, maps: tuple[str, ...], rank: int
) -> None:
    save_model(tmp_path / "base", "llama")
    folder, config = tmp_path / "base", read_config(tmp_path / "base")
    llama = load_llama(folder, config, torch.float32, packing(torch.float32))
    path = write_adapter(tmp_path / "a", random_factors(folder, maps, rank=rank), {"r": rank})
    boot = AdaptersBoot(root=str(tmp_path), max_rank=rank, max_loaded=3)
    loaded = load_adapters(folder, llama, boot)
    assert loaded is not None
    planned = loaded.planned_bytes
    for name in "abc":
        assert not loaded.is_full
        loaded.add(loaded.read(name, path))
        assert loaded.planned_bytes == planned
    assert loaded.is_full
    assert maps != EVERYWHERE or loaded.bytes == planned
    with pytest.raises(CheckpointError, match=f"rank {rank}, and adapters.max_rank is 0"):
        replace(loaded, max_rank=0).read("d", path)


@torch.no_grad()
def test_maps_without_factors_add_nothing(tmp_path: Path, texts: Any) -> None:
    model = save_model(tmp_path / "base", "llama")
    folder, config = tmp_path / "base", read_config(tmp_path / "base")
    llama = load_llama(folder, config, torch.float32, packing(torch.float32))
    base = adapter_base(folder, config, None)
    tensors = {
        name: tensor
        for name, tensor in random_factors(folder, ATTENTION).items()
        if ".layers.1." in name
    }
    adapter = Adapter.read(write_adapter(tmp_path / "a", tensors), base)
    loaded = loaded_of(llama, base, [adapter], packing(torch.float32))
    pool = AdapterPool(loaded, 2)
    pool.open(1, "1")
    logits = logits_of(pool, config, texts, torch.ones_like(IDS))
    expected = unmerged_logits(model, adapter.factors, IDS)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
    loaded.remove("1")
    assert loaded.bytes == 0
    loaded.add(ReadAdapter("2", loaded.adapted.pack(adapter), adapter.digest, {}))
    pool.open(1, "2")
    assert torch.equal(logits_of(pool, config, texts, torch.ones_like(IDS)), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_fused_layers_compute_what_their_ops_do(
    tmp_path: Path, texts: Any, dtype: torch.dtype
) -> None:
    save_model(tmp_path / "base", "qwen3")
    folder, config = tmp_path / "base", read_config(tmp_path / "base")
    llama = load_llama(folder, config, dtype, packing(dtype))
    base = adapter_base(folder, config, None)
    adapters = [
        Adapter.read(
            write_adapter(tmp_path / str(seed), random_factors(folder, maps, seed=seed)), base
        )
        for seed, maps in enumerate((EVERYWHERE, ("v_proj", "gate_proj"), MLP))
    ]
    loaded = loaded_of(llama, base, adapters, packing(torch.float32))
    adapted = loaded.adapted.model
    assert all(layer.fused is not None for layer in adapted.layers)
    by_ops = replace(adapted, layers=tuple(replace(one, fused=None) for one in adapted.layers))
    rows = torch.arange(len(IDS)) % 4
    found = []
    for model in (adapted, by_ops):
        pool = AdapterPool(replace(loaded, adapted=replace(loaded.adapted, model=model)), 4)
        for slot in range(4):
            pool.open(slot, str(slot) if slot else "")
        found.append(logits_of(pool, config, texts, rows))
    assert torch.equal(*found)


def loaded_of(
    llama: Llama, base: AdapterBase, adapters: Sequence[Adapter], linears: Linears
) -> LoadedAdapters:
    """Adapters named by their slots: 1, 2, ..."""
    adapted = adapted_llama(llama, base, 1 + len(adapters), linears)
    loaded = LoadedAdapters(llama, adapted, len(adapters), None, None)
    for slot, one in enumerate(adapters, start=1):
        loaded.add(ReadAdapter(str(slot), adapted.pack(one), one.digest, {}))
    return loaded


def logits_of(pool: AdapterPool, config: LanguageModelConfig, texts: Any, rows: Tensor) -> Tensor:
    """Logits of IDS as one text, of which each row has the adapter of its request."""
    positions, view = texts.make(config, 1, len(IDS), 4).view((0, 0, len(IDS)))
    with pool.applied(rows) as used:
        return used.logits(used.forward(IDS, positions, view)[0])
