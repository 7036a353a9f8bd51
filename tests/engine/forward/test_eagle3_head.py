"""The head equals a slow recomputation, and a head that does not fit its target is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_engine.forward import CheckpointError, DraftScratch, Eagle3Head, Llama, ScratchView

CPU = torch.device("cpu")
STEPS = 3
IDS = "eagle_aux_hidden_state_layer_ids"

Tensors = dict[str, Tensor]
Config = dict[str, object]


@pytest.fixture
def head_config(config: Config) -> Config:
    """A config.json of a head for the tiny Llama; its context is far too short."""
    own: Config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 7,
        "max_position_embeddings": 4,
        "eagle_config": {IDS: [0, 1, 3], "use_aux_hidden_state": True},
    }
    return {**config, **own}


Load = Callable[[Config, Tensors], Eagle3Head]


@pytest.fixture
def target(tmp_path: Path, config: Config, tensors: Tensors, write: Any) -> Llama:
    """The tiny Llama, in float64."""
    return Llama.load(write(tmp_path / "t", config, tensors), dtype=torch.float64, device=CPU)


@pytest.fixture
def load(tmp_path: Path, target: Llama, write: Any) -> Load:
    """Write a head and load it for the target."""

    def load(config: Config, tensors: Tensors) -> Eagle3Head:
        return Eagle3Head.load(write(tmp_path / "head", config, tensors), target, device=CPU)

    return load


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def turned(x: Tensor, first: int) -> Tensor:
    # x [rows, heads, 6] at positions first, first + 1, …
    angles = torch.arange(first, first + len(x))[:, None] / 10_000 ** (torch.arange(3) / 3)
    pairs = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones(()), angles)[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def slow_head(w: Tensors, token: Tensor, hidden: Tensor) -> Tensor:
    """Compute all rows at positions 0, 1, … in one go: token, hidden [rows, 12] -> [rows, 12]."""
    layer = {n.removeprefix("midlayer."): t for n, t in w.items()}
    pair = torch.cat(
        (
            normed(token, layer["input_layernorm.weight"]),
            normed(hidden, layer["hidden_norm.weight"]),
        ),
        dim=-1,
    )
    q, k, v = ((pair @ layer[f"self_attn.{n}_proj.weight"].T).view(len(pair), -1, 6) for n in "qkv")
    k, v = (x.repeat_interleave(2, dim=1) for x in (turned(k, 0), v))
    scores = torch.einsum("ihd,jhd->hij", turned(q, 0), k) / 6**0.5
    causal = torch.ones(len(pair), len(pair)).tril().bool()
    weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
    mixed = torch.einsum("hij,jhd->ihd", weights, v).flatten(1)
    x = hidden + mixed @ layer["self_attn.o_proj.weight"].T
    y = normed(x, layer["post_attention_layernorm.weight"])
    gated = torch.nn.functional.silu(y @ layer["mlp.gate_proj.weight"].T)
    return x + (gated * (y @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("embeds_itself", [False, True])
def test_extend_and_recurrent_steps_equal_a_recomputation(
    load: Load,
    target: Llama,
    head_config: Config,
    eagle3_tensors: Tensors,
    texts: Any,
    page_size: int,
    prefix: str,
    embeds_itself: bool,
) -> None:
    if embeds_itself:
        eagle3_tensors["embed_tokens.weight"] = torch.randn(31, 12)
    head = load(head_config, {n.replace("midlayer.", prefix): t for n, t in eagle3_tensors.items()})
    w = {n: t.double() for n, t in eagle3_tensors.items()}
    embedding = w.get("embed_tokens.weight", target.embedding)
    lengths = [8, 1, 5]
    ids = [torch.randint(0, 31, (length + STEPS,)) for length in lengths]
    features = [torch.randn(length, 36, dtype=torch.float64) for length in lengths]
    hidden = [rows @ w["fc.weight"].T for rows in features]  # grows by each recurrent output

    cached = texts.make(head.config, 3, 12, page_size, layers=1, dtype=torch.float64)
    spans = [(text, 0, length) for text, length in enumerate(lengths)]
    fused = head.fuse(torch.cat(features))
    tokens = torch.cat([row[:length] for row, length in zip(ids, lengths, strict=True)])
    positions, view = cached.view(*spans)
    drafted = head.forward(tokens, fused, positions, view)
    last = torch.tensor(lengths).cumsum(0) - 1
    normed_last, recurrent = drafted.normed[last], drafted.recurrent[last]

    scratch = DraftScratch(1, 4, STEPS, 2, 6, torch.float64, CPU)
    scratch.k.fill_(torch.nan)
    scratch.v.fill_(torch.nan)
    for step in range(STEPS + 1):
        slow = torch.stack(
            [
                slow_head(w, embedding[row[: len(h)]], h)[-1]
                for row, h in zip(ids, hidden, strict=True)
            ]
        )
        torch.testing.assert_close(recurrent, slow, atol=1e-5, rtol=1e-5)
        logits = normed(slow, w["norm.weight"]) @ w["lm_head.weight"].T
        torch.testing.assert_close(head.logits(normed_last), logits, atol=1e-5, rtol=1e-5)
        if step == STEPS:
            break
        hidden = [torch.cat((h, row[None])) for h, row in zip(hidden, slow, strict=True)]
        tokens = torch.stack([row[n + step] for row, n in zip(ids, lengths, strict=True)])
        view = ScratchView(cached.pool, scratch, step, cached.prefix(lengths))
        drafted = head.forward(tokens, recurrent, torch.tensor(lengths) + step, view)
        normed_last, recurrent = drafted.normed, drafted.recurrent


def test_it_shares_the_target_s_embedding_and_length(
    load: Load, target: Llama, head_config: Config, eagle3_tensors: Tensors
) -> None:
    head = load(head_config, eagle3_tensors)
    assert head.embedding is target.embedding
    assert head.angles.cos.shape[0] == target.context_length == 64
    assert head.capture == (0, 1, 3)


def test_draft_ids_lead_to_target_ids(
    load: Load, head_config: Config, eagle3_tensors: Tensors
) -> None:
    head = load(head_config, eagle3_tensors)
    assert head.target_ids(torch.tensor([[0, 6], [4, 3]])).tolist() == [[2, 30], [13, 8]]
    assert head.draft_to_target.tolist() == [2, 3, 5, 8, 13, 21, 30]


def test_a_head_of_the_whole_vocabulary_needs_no_map(
    load: Load, head_config: Config, eagle3_tensors: Tensors
) -> None:
    del eagle3_tensors["d2t"], eagle3_tensors["t2d"], head_config["draft_vocab_size"]
    eagle3_tensors["lm_head.weight"] = torch.randn(31, 12)
    assert load(head_config, eagle3_tensors).draft_to_target.tolist() == list(range(31))


def test_usual_layers_are_taken_where_none_are_stated(
    tmp_path: Path,
    config: Config,
    tensors: Tensors,
    head_config: Config,
    eagle3_tensors: Tensors,
    write: Any,
) -> None:
    del head_config["eagle_config"]
    layers = {
        n.replace("layers.0.", f"layers.{i}."): t.clone()
        for i in range(8)
        for n, t in tensors.items()
        if "layers.0." in n
    }
    rest = {n: t for n, t in tensors.items() if "layers." not in n}
    folder = write(tmp_path / "t", {**config, "num_hidden_layers": 8}, {**layers, **rest})
    target = Llama.load(folder, device=CPU)
    head = write(tmp_path / "h", head_config, eagle3_tensors)
    assert Eagle3Head.load(head, target, device=CPU).capture == (1, 3, 4)


REFUSED_CONFIGS: list[tuple[Config, str]] = [
    ({"architectures": ["LlamaForCausalLM"]}, "an EAGLE-3 head says LlamaForCausalLMEagle3"),
    ({"num_hidden_layers": 2}, "num_hidden_layers is 2; only heads of one layer"),
    ({"norm_before_fc": True}, "norm_before_fc is True; this variant"),
    ({"fc_norm": True}, "fc_norm is True; this variant"),
    ({"eagle_config": {"norm_output": True}}, "eagle_config.norm_output is True; this variant"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
    ({"vocab_size": 32}, "vocab_size is 32; the target's is 31"),
    ({"draft_vocab_size": 32}, "draft_vocab_size is 32; vocab_size is only 31"),
    ({"target_hidden_size": 24}, "target_hidden_size is 24; the target's hidden size is 12"),
    ({"eagle_config": {}}, f"{IDS} is missing and the usual [1, 1, 0] do not fit; state"),
    ({"eagle_config": {IDS: [0, 2, 4]}}, f"eagle_config.{IDS} is [0, 2, 4]; state"),
    ({"eagle_config": {IDS: [1, 1, 3]}}, "is [1, 1, 3]; state the head's ascending ids"),
    ({"eagle_config": {IDS: [-1, 1, 3]}}, "is [-1, 1, 3]; state"),
    ({"num_aux_hidden_states": 2}, f"num_aux_hidden_states is 2; {IDS} names 3"),
    ({"eagle_config": {IDS: [1, 3]}}, "fc.weight reads 36 features, but layers [1, 3]"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED_CONFIGS, ids=lambda value: str(value)[:40])
def test_a_config_is_refused(
    load: Load, head_config: Config, eagle3_tensors: Tensors, keys: Config, message: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load({**head_config, **keys}, eagle3_tensors)


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def adding(**added: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, **added}


REFUSED_TENSORS: list[tuple[Callable[[Tensors], Tensors], str]] = [
    (without("midlayer.hidden_norm.weight"), "lacks midlayer.hidden_norm.weight"),
    (without("d2t"), "lacks d2t"),
    (without("lm_head.weight"), "lacks lm_head.weight"),
    (adding(input_norm=torch.zeros(36)), "holds, unused, input_norm"),
    (adding(norm=torch.zeros(1)), "holds, unused, norm"),
    (adding(d2t=torch.zeros(8, dtype=torch.int64)), "d2t is [8] instead of [7]"),
    (adding(d2t=torch.tensor([0, -1, 0, 0, 0, 0, 0])), "d2t does not lead to 7 different"),
    (adding(d2t=torch.full((7,), 25)), "d2t does not lead to 7 different"),
    (adding(t2d=torch.ones(31, dtype=torch.bool)), "t2d marks other ids"),
]


@pytest.mark.parametrize(
    ("change", "message"), REFUSED_TENSORS, ids=[m for _, m in REFUSED_TENSORS]
)
def test_tensors_are_refused(
    load: Load,
    head_config: Config,
    eagle3_tensors: Tensors,
    change: Callable[[Tensors], Tensors],
    message: str,
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(head_config, change(eagle3_tensors))


def test_a_head_of_another_width_needs_its_own_embedding(
    tmp_path: Path,
    tensors: Tensors,
    config: Config,
    head_config: Config,
    eagle3_tensors: Tensors,
    write: Any,
) -> None:
    wide = {n: torch.cat((t, t), dim=-1) if t.shape[-1] == 12 else t for n, t in tensors.items()}
    wide = {n: torch.cat((t, t)) if t.shape[0] == 12 else t for n, t in wide.items()}
    for name in [n for n in wide if "k_proj" in n or "v_proj" in n]:
        wide[name] = wide[name][:12]
    folder = write(tmp_path / "t", {**config, "hidden_size": 24}, wide)
    target = Llama.load(folder, device=CPU)
    eagle3_tensors["fc.weight"] = torch.randn(12, 72)
    with pytest.raises(CheckpointError, match=r"lacks embed_tokens\.weight, and the target's, 24"):
        Eagle3Head.load(write(tmp_path / "h", head_config, eagle3_tensors), target, device=CPU)
    eagle3_tensors["embed_tokens.weight"] = torch.randn(31, 12)
    head = Eagle3Head.load(write(tmp_path / "h", head_config, eagle3_tensors), target, device=CPU)
    assert head.fuse(torch.zeros(2, 72)).shape == (2, 12)
