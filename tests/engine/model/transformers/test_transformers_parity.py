"""Logits equal transformers' for random small models, however the text is cut."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import SINGLE
from specdecode_engine.model.layers.sparse_mlp import SparseMlp
from specdecode_engine.model.target.config import EMBEDDED, AuxHiddenStates
from specdecode_engine.model.target.llama import Llama

CPU = torch.device("cpu")
LENGTHS = (23, 9)

ROPE: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def draw_config(seed: int) -> transformers.LlamaConfig:
    """Draw sizes and switches; the kinds of rotary positions take turns."""
    chance = random.Random(seed)
    kind = list(ROPE)[seed % len(ROPE)]
    kv_heads, shared = chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
    heads = kv_heads * shared
    return transformers.LlamaConfig(
        vocab_size=chance.randint(20, 90),
        hidden_size=heads * chance.choice((4, 6)),
        intermediate_size=chance.randint(5, 40),
        num_hidden_layers=chance.randint(1, 4),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=chance.choice((None, 8, 10)),
        max_position_embeddings=chance.choice((32, 100)),
        rms_norm_eps=chance.choice((1e-5, 1e-6)),
        tie_word_embeddings=chance.random() < 0.4,
        attention_bias=chance.random() < 0.4,
        mlp_bias=chance.random() < 0.4,
        hidden_act="gelu_pytorch_tanh" if seed % 3 == 1 else "silu",
        rope_parameters={
            "rope_type": kind,
            "rope_theta": chance.choice((100.0, 10_000.0, 500_000.0)),
            **ROPE[kind],
        },
    )


def draw_qwen3(seed: int) -> transformers.Qwen3Config:
    """Draw sizes and switches; head_dim does not follow from the hidden size."""
    chance = random.Random(seed)
    kv_heads, shared = chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
    return transformers.Qwen3Config(
        vocab_size=chance.randint(20, 90),
        hidden_size=chance.choice((10, 24, 36)),
        intermediate_size=chance.randint(5, 40),
        num_hidden_layers=chance.randint(1, 4),
        num_attention_heads=kv_heads * shared,
        num_key_value_heads=kv_heads,
        head_dim=chance.choice((6, 8, 10)),
        max_position_embeddings=100,
        rms_norm_eps=chance.choice((1e-5, 1e-6)),
        tie_word_embeddings=chance.random() < 0.4,
        attention_bias=chance.random() < 0.4,
        rope_parameters={"rope_type": "default", "rope_theta": chance.choice((100.0, 1e6))},
    )


def randomised(model: Any, seed: int) -> Any:
    """Redraw every weight, wide enough that wrong arithmetic shows."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        width = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
        drawn = torch.randn(parameter.shape, generator=generator) * width * 1.5
        parameter.data = drawn + 1 if parameter.dim() == 1 else drawn
    return model.eval()


@torch.no_grad()
def check_all_cuts(model: Any, ours: Llama, texts: Any, page_size: int) -> None:
    """Compare full prefill, prefill in chunks and token-by-token decoding of two texts."""
    ids = [torch.randint(0, model.config.vocab_size, (length,)) for length in LENGTHS]
    wanted = [model(text[None]).logits[0] for text in ids]
    cuts = {
        "full": [[(0, 0, 23), (1, 0, 9)]],
        "chunks": [[(0, 0, 7)], [(0, 7, 20), (1, 0, 5)], [(1, 5, 9), (0, 20, 23)]],
        "decode": [[(0, 0, 14), (1, 0, 1)]]
        + [[(0, 14 + i, 15 + i), (1, 1 + i, 2 + i)] for i in range(8)],
    }
    for name, rounds in cuts.items():
        cached = texts.make(ours.config, 2, max(LENGTHS), page_size)
        for spans in rounds:
            positions, view = cached.view(*spans)
            rows = torch.cat([ids[text][start:end] for text, start, end in spans])
            logits = ours.logits(ours.forward(rows, positions, view)[0])
            expected = torch.cat([wanted[text][start:end] for text, start, end in spans])
            torch.testing.assert_close(
                logits, expected, atol=1e-4, rtol=1e-4, msg=f"{name}: {{}}".format
            )


@pytest.mark.parametrize("seed", range(25))
def test_random_llamas(seed: int, tmp_path: Path, texts: Any) -> None:
    model = randomised(transformers.LlamaForCausalLM(draw_config(seed)), seed)
    sharded = seed % 2 == 1
    model.save_pretrained(tmp_path, max_shard_size="2KB" if sharded else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    ours = Llama.load(tmp_path, device=CPU)
    assert ours.dtype == torch.float32
    check_all_cuts(model, ours, texts, page_size=random.Random(seed).choice((1, 2, 4, 16)))


@pytest.mark.parametrize("seed", range(8))
def test_random_qwen3s(seed: int, tmp_path: Path, texts: Any) -> None:
    model = randomised(transformers.Qwen3ForCausalLM(draw_qwen3(seed)), seed)
    model.save_pretrained(tmp_path, max_shard_size="2KB" if seed % 2 else "5GB")
    ours = Llama.load(tmp_path, device=CPU)
    assert ours.config.decoder.qk_norm
    check_all_cuts(model, ours, texts, page_size=random.Random(seed).choice((1, 2, 4, 16)))


def draw_qwen3_moe(seed: int) -> transformers.Qwen3MoeConfig:
    """Draw sizes and switches; layers with experts and without take turns in different ways."""
    chance = random.Random(seed)
    kv_heads, shared = chance.choice((1, 2)), chance.choice((1, 2))
    num_experts, layers = chance.choice((2, 5, 8)), chance.randint(2, 4)
    maker: Any = transformers.Qwen3MoeConfig  # its signature lacks head_dim
    config: transformers.Qwen3MoeConfig = maker(
        vocab_size=chance.randint(20, 90),
        hidden_size=chance.choice((10, 24, 36)),
        intermediate_size=chance.randint(5, 40),
        moe_intermediate_size=chance.randint(5, 20),
        num_hidden_layers=layers,
        num_attention_heads=kv_heads * shared,
        num_key_value_heads=kv_heads,
        head_dim=chance.choice((6, 8, 10)),
        max_position_embeddings=100,
        num_experts=num_experts,
        num_experts_per_tok=chance.randint(1, min(4, num_experts)),
        norm_topk_prob=seed % 2 == 0,
        decoder_sparse_step=(1, 1, 2)[seed % 3],
        mlp_only_layers=([], [1], [])[seed % 3],
        tie_word_embeddings=chance.random() < 0.4,
    )
    return config


@pytest.mark.parametrize("seed", range(6))
def test_random_qwen3_moes(seed: int, tmp_path: Path, texts: Any) -> None:
    model = randomised(transformers.Qwen3MoeForCausalLM(draw_qwen3_moe(seed)), seed)
    model.set_experts_implementation("eager")
    model.save_pretrained(tmp_path, max_shard_size="2KB" if seed % 2 else "5GB")
    ours = Llama.load(tmp_path, device=CPU)
    blocks = [type(layer.mlp).__name__ for layer in model.model.layers]
    assert [type(layer.mlp) is SparseMlp for layer in ours.layers] == [
        name == "Qwen3MoeSparseMoeBlock" for name in blocks
    ]
    assert any(type(layer.mlp) is SparseMlp for layer in ours.layers)
    check_all_cuts(model, ours, texts, page_size=random.Random(seed).choice((1, 2, 4, 16)))


def draw_gpt_oss(seed: int) -> transformers.GptOssConfig:
    """Draw sizes and switches; windows are shorter than half of the texts."""
    chance = random.Random(seed)
    kv_heads, shared = chance.choice((1, 2)), chance.choice((1, 2, 4))
    num_experts, layers = chance.choice((2, 5, 8)), chance.randint(2, 4)
    yarn = {**ROPE["yarn"], "beta_fast": 32.0, "beta_slow": 1.0, "truncate": seed % 2 == 0}
    return transformers.GptOssConfig(
        vocab_size=chance.randint(20, 90),
        hidden_size=chance.choice((10, 24, 36)),
        intermediate_size=chance.randint(5, 20),
        num_hidden_layers=layers,
        num_attention_heads=kv_heads * shared,
        num_key_value_heads=kv_heads,
        head_dim=chance.choice((6, 8, 10)),
        sliding_window=chance.choice((1, 4, 9)),
        layer_types=None if seed % 3 else ["full_attention", *["sliding_attention"] * (layers - 1)],
        max_position_embeddings=100,
        num_local_experts=num_experts,
        num_experts_per_tok=chance.randint(1, min(4, num_experts)),
        swiglu_alpha=chance.choice((1.702, 1.0)),
        swiglu_limit=chance.choice((7.0, 0.5)),
        attention_bias=seed % 4 != 3,
        tie_word_embeddings=chance.random() < 0.4,
        rope_parameters={"rope_theta": 150_000.0, "rope_type": "default" if seed == 1 else "yarn"}
        | ({} if seed == 1 else yarn),
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_gpt_osses(seed: int, tmp_path: Path, texts: Any) -> None:
    config = draw_gpt_oss(seed)
    model = randomised(transformers.GptOssForCausalLM(config), seed)
    model.set_experts_implementation("eager")
    model.save_pretrained(tmp_path, max_shard_size="2KB" if seed % 2 else "5GB")
    ours = Llama.load(tmp_path, device=CPU)
    assert all(type(layer.mlp) is SparseMlp for layer in ours.layers)
    assert all(layer.attention.params.sinks is not None for layer in ours.layers)
    assert len(set(ours.config.sliding_windows)) == 2
    check_all_cuts(model, ours, texts, page_size=random.Random(seed).choice((1, 2, 4, 16)))


SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


WINDOW = 4
"""Of positions; both texts are more than twice as long."""

RELATIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"head_dim": 8, "sliding_window": None}),
    "mistral with windows": ("Mistral", {"head_dim": 8, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {"use_sliding_window": False}),
    "qwen2 with windows from a layer on": ("Qwen2", {"max_window_layers": 1}),
    "qwen3 with windows in every layer": ("Qwen3", {"max_window_layers": 0, "head_dim": 8}),
    "qwen3 with windows by layer types": (
        "Qwen3",
        {"layer_types": ["sliding_attention", "full_attention"], "head_dim": 8},
    ),
}


def draw_gemma(seed: int) -> Any:
    """Draw sizes and switches of Gemma 2 and, for odd seeds, of Gemma 3."""
    chance = random.Random(seed)
    kv_heads, shared = chance.choice((1, 2)), chance.choice((1, 2, 4))
    heads, layers, is_third = kv_heads * shared, chance.randint(2, 4), seed % 2 == 1
    types = [chance.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    angles: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0}
    if is_third:
        stretched = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}
        angles = {"full_attention": stretched, "sliding_attention": angles}
    maker: Any = transformers.Gemma3TextConfig if is_third else transformers.Gemma2Config
    return maker(
        vocab_size=chance.randint(20, 90),
        hidden_size=heads * chance.choice((4, 6)),
        intermediate_size=chance.randint(5, 40),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=chance.choice((6, 8, 10)),
        max_position_embeddings=100,
        sliding_window=WINDOW,
        layer_types=chance.choice((types, None)),
        query_pre_attn_scalar=chance.choice((5, 24)),
        attn_logit_softcapping=None if is_third else chance.choice((None, 5.0)),
        final_logit_softcapping=chance.choice((None, 3.0)),
        rope_parameters=angles,
        attention_bias=chance.random() < 0.3,
        tie_word_embeddings=chance.random() < 0.7,
    )


@pytest.mark.parametrize("seed", range(10))
def test_random_gemmas(seed: int, tmp_path: Path, texts: Any) -> None:
    config = draw_gemma(seed)
    kind: Any = transformers.Gemma3ForCausalLM if seed % 2 else transformers.Gemma2ForCausalLM
    model = randomised(kind(config), seed)
    model.set_attn_implementation("eager")  # the only one with a softcap
    model.save_pretrained(tmp_path, max_shard_size="2KB" if seed % 3 == 0 else "5GB")
    ours = Llama.load(tmp_path, device=CPU)
    is_full = [kind == "full_attention" for kind in config.layer_types]
    assert [window is None for window in ours.config.sliding_windows] == is_full
    check_all_cuts(model, ours, texts, page_size=random.Random(seed).choice((1, 2, 4, 16)))


def test_gemma_rounds_to_bfloat16_as_transformers_does(tmp_path: Path) -> None:
    """1 + weight stays wide; the scale of embeddings is rounded first."""
    model = randomised(transformers.Gemma3ForCausalLM(draw_gemma(1)), 1).bfloat16()
    model.save_pretrained(tmp_path)
    ours, ids = Llama.load(tmp_path, device=CPU), torch.arange(9)
    norm, theirs = ours.layers[0].mlp_norm, model.model.layers[0].pre_feedforward_layernorm
    x = torch.randn(9, model.config.hidden_size).bfloat16()
    assert torch.equal(norm.weight, 1.0 + theirs.weight.float())
    torch.testing.assert_close(norm(x), theirs(x), atol=0, rtol=2**-7)
    assert ours.embedding_scale is not None
    embedded = torch.nn.functional.embedding(ids, ours.embedding) * ours.embedding_scale
    assert torch.equal(embedded, model.model.embed_tokens(ids))


VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 8,
}


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_text_model_of_a_gemma_3_with_images(
    is_whole: bool, tmp_path: Path, texts: Any
) -> None:
    """Its tensors lie under `language_model.`, or its layers alone under `model.language_model.`"""
    text = randomised(transformers.Gemma3ForCausalLM(draw_gemma(5)), 5)
    text.set_attn_implementation("eager")
    config = transformers.Gemma3Config(
        text_config=text.config.to_dict(), vision_config=VISION, mm_tokens_per_image=1
    )
    whole = transformers.Gemma3ForConditionalGeneration(config)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "language_model.model.norm.weight" in tensors
    if not is_whole:
        save_file({inside_out(name): one for name, one in tensors.items()}, tmp_path / SINGLE)
    ours = Llama.load(tmp_path, device=CPU)
    others = [name for name in tensors if not name.startswith("language_model.")]
    assert len(ours.skipped_tensors) == len(others) > 9
    check_all_cuts(text, ours, texts, page_size=4)


def inside_out(name: str) -> str:
    """Return a tensor's name in the layout of transformers' modules."""
    if name.startswith("language_model.lm_head."):
        return name.removeprefix("language_model.")
    return "model." + name.replace("language_model.model.", "language_model.")


@pytest.mark.parametrize("name", RELATIVES)
def test_close_relatives(name: str, tmp_path: Path, texts: Any) -> None:
    family, keys = RELATIVES[name]
    if family != "Mistral":
        keys = {"use_sliding_window": True, "sliding_window": WINDOW, **keys}
    config = getattr(transformers, f"{family}Config")(**SMALL, **keys)
    model = randomised(getattr(transformers, f"{family}ForCausalLM")(config), 1)
    model.save_pretrained(tmp_path)
    ours = Llama.load(tmp_path, device=CPU)
    assert any(ours.config.sliding_windows) == ("with windows" in name)
    check_all_cuts(model, ours, texts, page_size=4)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2],
            "long_factor": [1.5, 3.0, 6.0],
            "original_max_position_embeddings": 8,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_texts_of_one_batch_have_the_angles_of_their_lengths(
    rope: dict[str, Any], tmp_path: Path, texts: Any
) -> None:
    config = transformers.LlamaConfig(
        **{**SMALL, "max_position_embeddings": 16},
        rope_parameters={**rope, "rope_theta": 100.0},
    )
    model = randomised(transformers.LlamaForCausalLM(config), 2)
    model.save_pretrained(tmp_path)
    ours = Llama.load(tmp_path, device=CPU, context_length=32)
    lengths = ours.rotary_limits.limits
    assert lengths == (rope.get("original_max_position_embeddings", 16), 32)
    ids = torch.randint(0, 50, (2, 32))
    with torch.no_grad():
        wanted = [model(ids[text, None, :end]).logits[0] for text, end in enumerate(lengths)]
    cached = texts.make(ours.config, 2, 32, 4)
    cuts = [(0, 5), (5, lengths[0])]
    rounds = [((0, *cut), (1, *cut)) for cut in cuts] + [((1, lengths[0], 32),)]
    for spans in rounds:
        positions, view = cached.view(*spans)
        first = [ours.rotary_limits.first_row(lengths[text]) for text, _, _ in spans]
        sizes = torch.tensor([end - start for _, start, end in spans])
        rows = positions + torch.tensor(first).repeat_interleave(sizes)
        computed = torch.cat([ids[text, start:end] for text, start, end in spans])
        logits = ours.logits(ours.forward(computed, rows, view)[0])
        expected = torch.cat([wanted[text][start:end] for text, start, end in spans])
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_aux_hidden_states_are_the_embedding_and_outputs(tmp_path: Path, texts: Any) -> None:
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 4})
    model = randomised(transformers.LlamaForCausalLM(config), 3)
    model.save_pretrained(tmp_path)
    ours, ids = Llama.load(tmp_path, device=CPU), torch.randint(0, 50, (11,))
    with torch.no_grad():
        states = model(ids[None], output_hidden_states=True).hidden_states
    positions, view = texts.make(ours.config, 1, 11, 4).view((0, 0, 11))
    hidden, aux = ours.forward(ids, positions, view, AuxHiddenStates(layers=(EMBEDDED, 0, 2)))
    wanted: Tensor = torch.cat((states[0][0], states[1][0], states[3][0]), dim=-1)
    torch.testing.assert_close(aux, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden, states[4][0], atol=1e-4, rtol=1e-4)
