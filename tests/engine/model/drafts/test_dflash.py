"""DFlash drafts equal transformers' implementation of them, and a slow recomputation of others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant import (
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
)

from checks.lossless.block_drafts import save_dflash
from checks.lossless.poison import poison
from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, TensorError
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.drafts.dflash import DFlashHead
from specdecode_engine.model.kv.block_view import BlockMasks, BlockView
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.model.target.llama import Llama
from specdecode_kernels import AttentionMetadata
from tests.engine.checkpoints import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    Checkpoints,
)

CPU = torch.device("cpu")
LENGTHS = [21, 1, 9]
PAGE_SIZE = 4
MUSE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "max_position_embeddings": 512,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "block_size": 6,
    "mask_token_id": VOCAB - 1,
    "target_layer_ids": [0, 1],
}
SLIDING = ["sliding_attention", "full_attention"]
VARIANTS: dict[str, dict[str, Any]] = {
    "both ways": {},
    "causal": {"is_causal": True},
    "causal where sliding": {"layer_types": SLIDING, "sliding_window": 12},
    "sliding both ways": {"layer_types": SLIDING, "sliding_window": 12, "is_causal": False},
    "windows everywhere": {
        "dflash_config": {
            "mask_token_id": 3,
            "target_layer_ids": [0, 1],
            "use_swa": True,
            "swa_window_size": 13,
        },
    },
    "own theta": {"rope_theta": 50_000.0},
}


@pytest.fixture(scope="module")
def target(checkpoints: Checkpoints) -> LanguageModel:
    return Llama.load(checkpoints.target, dtype=torch.float64, device=CPU, context_length=256)


def drafted_logits(
    head: DFlashHead, aux: list[Tensor], ids: Tensor, rows: int | None = None
) -> Tensor:
    """Draft after contexts that lie over shuffled pages of a poisoned pool.

    Args:
        rows: of each block; None: all.
    """
    config, rows = head.config, rows or head.config.block_size
    pages = torch.randperm(3 * 8).view(3, 8) + 1
    pool = KVCache(config.layer_map, 3 * 8 + 1, PAGE_SIZE, torch.float64, CPU)
    poison(pool)
    for states, table in zip(aux, pages, strict=True):
        places = torch.arange(len(states))
        slots = table[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE
        for part in places.split(5):
            head.write_context(states[part], part, pool, slots[part])
    lengths = torch.tensor(LENGTHS)
    prefix = lengths.repeat_interleave(rows)
    layout = AttentionMetadata(pages, PAGE_SIZE, (rows,) * 3, prefix, max(LENGTHS))
    masks = BlockMasks.make(4, config.block_size, CPU)
    view = BlockView(pool, layout, masks.of(len(ids), rows), config.causal_layers)
    positions = (lengths[:, None] + torch.arange(rows)).flatten()
    hidden = head.forward(ids, positions, view)
    return head.logits(hidden.flatten(0, 1)).view(3, rows - 1, -1)


def made_up(width: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(3)
    aux = [torch.randn(n, width, generator=generator).double() for n in LENGTHS]
    return aux, torch.randint(0, VOCAB, (3,), generator=generator)


def test_assistants_of_muse_draft_as_in_transformers(target: LanguageModel, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**MUSE)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(tmp_path)
    head = DFlashHead.load(tmp_path, target)
    assert head.config.causal_layers == (False,) * 3
    assert head.config.sliding_windows == (None, 8, 8)
    aux, ids = made_up(2 * HIDDEN)
    found = drafted_logits(head, aux, ids)
    for states, token, logits in zip(aux, ids, found, strict=True):
        cache = DFlashCache(config=model.config)
        cache.set_previous_accepted_tokens(len(states))
        noise = torch.tensor([token, *[VOCAB - 1] * 5])
        with torch.no_grad():
            outputs = model(
                noise_embeds=target.embedding[noise][None],
                context_hidden_states=states[None],
                position_ids=torch.arange(len(states) + 6)[None],
                past_key_values=cache,
            )
        expected = target.logits(outputs.last_hidden_state[0, 1:])
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_equal_a_recomputation(
    checkpoints: Checkpoints, target: LanguageModel, tmp_path: Path, name: str
) -> None:
    """Whole ones, and those of which only the first rows are computed."""
    save_dflash(tmp_path / "draft", checkpoints.target, **VARIANTS[name])
    head = DFlashHead.load(tmp_path / "draft", target)
    assert head.config.rope.theta == VARIANTS[name].get("rope_theta", 1_000_000.0)
    weights = {
        key: tensor.double()
        for key, tensor in load_file(tmp_path / "draft" / "model.safetensors").items()
    }
    aux, ids = made_up(2 * HIDDEN)
    for steps in (head.config.max_steps, 2):
        found = drafted_logits(head, aux, ids, steps + 1)
        for states, token, logits in zip(aux, ids, found, strict=True):
            tokens = torch.tensor([token, *[head.config.mask_token_id] * steps])
            hidden = slow_block(head, weights, states, target.embedding[tokens])
            torch.testing.assert_close(logits, target.logits(hidden[1:]), atol=1e-6, rtol=1e-6)


def slow_block(head: DFlashHead, w: dict[str, Tensor], aux: Tensor, x: Tensor) -> Tensor:
    """Recompute a block [rows, hidden] after a context, without a cache."""
    config, context = head.config, normed(aux @ w["fc.weight"].T, w["hidden_norm.weight"])
    positions = torch.arange(len(aux) + len(x))
    distances = positions[len(aux) :, None] - positions
    for number, (window, is_causal) in enumerate(
        zip(config.sliding_windows, config.causal_layers, strict=True)
    ):
        layer = {
            key.removeprefix(f"layers.{number}.").removesuffix(".weight"): tensor
            for key, tensor in w.items()
            if key.startswith(f"layers.{number}.")
        }
        shown = distances < (window or len(positions))
        shown &= distances >= 0 if is_causal else distances > -(window or len(positions))
        x = slow_layer(layer, context, x, shown, config.rope.theta)
    return normed(x, w["norm.weight"])


def slow_layer(
    w: dict[str, Tensor], context: Tensor, x: Tensor, shown: Tensor, theta: float
) -> Tensor:
    read = normed(x, w["input_layernorm"])
    rows = torch.cat((context, read))
    q = (read @ w["self_attn.q_proj"].T).view(len(read), HEADS, HEAD_DIM)
    k, v = ((rows @ w[f"self_attn.{n}_proj"].T).view(len(rows), KV_HEADS, HEAD_DIM) for n in "kv")
    q = turned(normed(q, w["self_attn.q_norm"]), len(context), theta)
    k = turned(normed(k, w["self_attn.k_norm"]), 0, theta)
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / HEAD_DIM**0.5
    mixed = torch.einsum(
        "hij,jhd->ihd", scores.masked_fill(~shown, -torch.inf).softmax(-1), v
    ).flatten(1)
    x = x + mixed @ w["self_attn.o_proj"].T
    y = normed(x, w["post_attention_layernorm"])
    gated = silu(y @ w["mlp.gate_proj"].T) * (y @ w["mlp.up_proj"].T)
    return x + gated @ w["mlp.down_proj"].T


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def turned(x: Tensor, first: int, theta: float) -> Tensor:
    half = HEAD_DIM // 2
    frequencies = torch.reciprocal(theta ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
    angles = torch.outer(torch.arange(first, first + len(x)).float(), frequencies).double()
    pairs = torch.complex(x[..., :half], x[..., half:])
    pairs = pairs * torch.polar(torch.ones((), dtype=torch.float64), angles)[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def test_a_context_of_zeros_is_the_same_at_every_length(
    checkpoints: Checkpoints, target: LanguageModel, tmp_path: Path
) -> None:
    """With fc = 0 the draft sees nothing of the text but the bonus token."""
    save_dflash(tmp_path / "draft", checkpoints.target)
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "fc.weight": torch.zeros_like(tensors["fc.weight"])}, file)
    head = DFlashHead.load(tmp_path / "draft", target)
    aux, ids = made_up(2 * HIDDEN)
    others = [states.flip(0) * 2 for states in aux]
    found, expected = (drafted_logits(head, each, ids) for each in (aux, others))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_missing_renamed_or_reshaped_tensor_is_named(
    checkpoints: Checkpoints, target: LanguageModel, prefix: str
) -> None:
    whole = Checkpoint.open(checkpoints.dflash)
    stored = {prefix + name: one for name, one in whole.tensors.items()}
    config = DFlashHead.read_config(checkpoints.dflash, target.config)

    def check(**tensors: object) -> None:
        DFlashHead.check(config, replace(whole, tensors=tensors), target.config)  # type: ignore[arg-type]

    check(**stored)
    for name, one in stored.items():
        others = {key: value for key, value in stored.items() if key != name}
        with pytest.raises(TensorError, match=name.removeprefix(prefix)):
            check(**others)
        with pytest.raises(TensorError, match=name.removeprefix(prefix)):
            check(**others, **{name + "s": one})
        with pytest.raises(TensorError, match=name):
            check(**others, **{name: replace(one, shape=(*one.shape, 1))})


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"block_size": 1}, "block_size is 1; .* at least 2"),
        ({"dflash_config": {"mask_token_id": 96}}, "target_layer_ids is missing; .*0..1"),
        (
            {"dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2]}},
            r"target_layer_ids is \[0, 2\]; it names the target's last layer, of 3",
        ),
        (
            {"dflash_config": {"mask_token_id": 96, "target_layer_ids": [1, 0]}},
            "must be ascending",
        ),
        (
            {"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 1]}},
            "mask_token_id is 97; the target's vocabulary has 97",
        ),
        ({"is_neox_style": False}, "is_neox_style is False; only rotary positions of halves"),
        ({"vocab_size": 98}, "vocab_size is 98; the target's is 97"),
        ({"target_hidden_size": 32}, "target_hidden_size is 32; the target's is 64"),
        (
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
            "sliding_window is 4; a window must hold a block of 11",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures is .*; a DFlash draft has"),
    ],
)
def test_configs_that_are_not_computed_are_refused(
    checkpoints: Checkpoints,
    target: LanguageModel,
    tmp_path: Path,
    keys: dict[str, Any],
    error: str,
) -> None:
    save_dflash(tmp_path / "draft", checkpoints.target, **keys)
    with pytest.raises(CheckpointError, match=error):
        DFlashHead.read_config(tmp_path / "draft", target.config)


def test_a_refusal_names_file_value_and_remedy(
    checkpoints: Checkpoints, target: LanguageModel, tmp_path: Path
) -> None:
    """The whole message."""
    last = {"mask_token_id": 96, "target_layer_ids": [0, 2]}
    save_dflash(tmp_path / "last", checkpoints.target, dflash_config=last)
    with pytest.raises(CheckpointError) as refused:
        DFlashHead.read_config(tmp_path / "last", target.config)
    assert str(refused.value) == (
        f"{tmp_path}/last/config.json: target_layer_ids is [0, 2]; it names the target's last "
        "layer, of 3: whether its output is meant with or without the final norm is not known; "
        "use a draft that reads earlier layers"
    )
    save_dflash(tmp_path / "llama", checkpoints.target, architectures=["LlamaForCausalLM"])
    with pytest.raises(CheckpointError) as refused:
        DFlashHead.read_config(tmp_path / "llama", target.config)
    assert str(refused.value) == (
        f"{tmp_path}/llama/config.json: architectures is ['LlamaForCausalLM']; a DFlash draft has "
        "DFlashDraftModel or DFlashSpeculator or DFlashQwen3ForCausalLM or "
        "MuseGlimmerAssistantModel"
    )


def test_the_form_of_speculators_is_read(
    checkpoints: Checkpoints, target: LanguageModel, tmp_path: Path
) -> None:
    """Its ids number the boundaries after layers, and layers are causal where they slide."""
    save_dflash(tmp_path / "draft", checkpoints.target)
    file = tmp_path / "draft" / "config.json"
    flat = json.loads(file.read_text())
    own = {"block_size": flat.pop("block_size"), "mask_token_id": 7, "draft_vocab_size": VOCAB}
    for key in ("dflash_config", "architectures"):
        del flat[key]
    nested = {
        **own,
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": {**flat, "model_type": "qwen3", "sliding_window": None},
        "aux_hidden_state_layer_ids": [1, 2],
        "layer_types": SLIDING,
        "sliding_window": 64,
    }
    file.write_text(json.dumps(nested))
    config = DFlashHead.read_config(tmp_path / "draft", target.config)
    assert config.aux_spec.layers == (0, 1)
    assert (config.sliding_windows, config.causal_layers) == ((64, None), (True, False))
    assert config.mask_token_id == 7
    file.write_text(json.dumps({**nested, "sliding_window_non_causal": True}))
    config = DFlashHead.read_config(tmp_path / "draft", target.config)
    assert config.causal_layers == (False, False)
