"""The tiny models of the examples: published layouts, one vocabulary, drafts worth their while."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, BatchEncoding, LlamaForCausalLM

MODELS = Path(__file__).parents[2] / "examples" / "models"
FOLDERS = ("target", "draft", "eagle", "eagle3", "dflash")


def _attention_and_mlp(config: dict[str, Any], inputs: int) -> dict[str, tuple[int, int]]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "self_attn.q_proj.weight": (queries, inputs),
        "self_attn.k_proj.weight": (keys, inputs),
        "self_attn.v_proj.weight": (keys, inputs),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }


def _config(name: str) -> dict[str, Any]:
    config = json.loads((MODELS / name / "config.json").read_text())
    assert isinstance(config, dict)
    return config


def test_everything_is_small() -> None:
    sizes = {name: sum(f.stat().st_size for f in (MODELS / name).iterdir()) for name in FOLDERS}
    assert sum(sizes.values()) <= 12_000_000, sizes


@pytest.mark.parametrize("name", ["target", "draft"])
def test_transformers_reads_the_language_models(name: str) -> None:
    model = LlamaForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert len(tokenizer) == model.config.vocab_size == model.lm_head.weight.shape[0]
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    assert _config(name)["rope_theta"] == 10000.0
    ids = tokenizer("Count from one to five.", return_tensors="pt").input_ids
    assert model(ids).logits.isfinite().all()


def test_the_draft_differs_in_size_and_shares_the_tokenizer() -> None:
    target, draft = (AutoConfig.from_pretrained(MODELS / name) for name in ("target", "draft"))
    assert target.hidden_size != draft.hidden_size
    assert target.num_hidden_layers > draft.num_hidden_layers
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (MODELS / "target" / file).read_bytes() == (MODELS / "draft" / file).read_bytes()


def test_the_tokenizer_keeps_any_text_and_adds_nothing() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    text = "A fox, 42 eggs — naïve 日本 \n\t{}"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.all_special_ids)


def test_the_chat_template_renders() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
    ]
    closed = tokenizer.apply_chat_template(messages, tokenize=False)
    assert closed == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
    )
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert opened == closed + "<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert isinstance(ids, BatchEncoding)
    assert ids["input_ids"].count(tokenizer.eos_token_id) == 2


def test_the_chat_template_shows_tools_calls_and_results() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    shown = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert isinstance(shown, str)
    assert f"<tools>\n{json.dumps(tools[0])}\n</tools>" in shown
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in shown
    assert "<tool_response>\nsunny\n</tool_response>" in shown
    assert shown.endswith("<|im_start|>assistant\n")


def test_the_eagle_head_has_the_published_layout() -> None:
    config, target = _config("eagle"), _config("target")
    weights = load_file(MODELS / "eagle" / "model.safetensors")
    assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert config["num_hidden_layers"] == 1
    assert config["bias"] is True
    for shared in ("vocab_size", "hidden_size", "rope_theta"):
        assert config[shared] == target[shared]
    hidden = config["hidden_size"]
    layer = _attention_and_mlp(config, hidden) | {"post_attention_layernorm.weight": (hidden,)}
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "fc.bias": (hidden,),
        **{f"layers.0.{name}": shape for name, shape in layer.items()},
    }
    assert {name: tuple(t.shape) for name, t in weights.items()} == shapes
    assert {t.dtype for t in weights.values()} == {torch.bfloat16}


def test_the_eagle3_head_has_the_published_layout() -> None:
    config, target = _config("eagle3"), _config("target")
    weights = load_file(MODELS / "eagle3" / "model.safetensors")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["num_hidden_layers"] == 1
    assert config["vocab_size"] == target["vocab_size"]
    assert config["hidden_size"] == target["hidden_size"]
    hidden, drafted = config["hidden_size"], config["draft_vocab_size"]
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    layer = _attention_and_mlp(config, 2 * hidden) | {f"{n}.weight": (hidden,) for n in norms}
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
        "d2t": (drafted,),
        "t2d": (config["vocab_size"],),
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
    }
    assert {name: tuple(t.shape) for name, t in weights.items()} == shapes
    assert weights["d2t"].dtype == torch.int64
    assert weights["t2d"].dtype == torch.bool
    eagle = config["eagle_config"]
    ids = eagle["eagle_aux_hidden_state_layer_ids"]
    assert eagle["use_aux_hidden_state"] is True
    assert len(ids) == 3
    assert ids == sorted(set(ids))
    assert 0 <= ids[0] <= ids[-1] < target["num_hidden_layers"]


def test_the_vocabulary_maps_of_the_eagle3_head_agree() -> None:
    weights = load_file(MODELS / "eagle3" / "model.safetensors")
    target_ids = weights["d2t"] + torch.arange(len(weights["d2t"]))
    assert (target_ids.diff() > 0).all()
    assert torch.equal(target_ids, weights["t2d"].nonzero().flatten())


def test_the_dflash_draft_has_the_published_layout() -> None:
    config, target = _config("dflash"), _config("target")
    weights = load_file(MODELS / "dflash" / "model.safetensors")
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["block_size"] == 16
    for shared in ("vocab_size", "hidden_size", "rope_theta"):
        assert config[shared] == target[shared]
    method, hidden, head_dim = config["dflash_config"], config["hidden_size"], config["head_dim"]
    ids = method["target_layer_ids"]
    assert 0 <= method["mask_token_id"] < target["vocab_size"]
    assert 0 <= ids[0] <= ids[-1] < target["num_hidden_layers"] - 1
    norms = {f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    head_norms = {f"self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    layer = _attention_and_mlp(config, hidden) | norms | head_norms
    shapes = {
        "fc.weight": (hidden, len(ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        **{
            f"layers.{number}.{name}": shape
            for number in range(config["num_hidden_layers"])
            for name, shape in layer.items()
        },
    }
    assert {name: tuple(t.shape) for name, t in weights.items()} == shapes
    assert {t.dtype for t in weights.values()} == {torch.bfloat16}


def test_enough_prompts_are_held_out() -> None:
    prompts = json.loads((MODELS / "prompts.json").read_text())
    assert len({p["text"] for p in prompts}) == len(prompts) >= 40
    assert {p["kind"] for p in prompts} == {"chat", "text"}


def test_every_draft_is_worth_its_while_on_held_out_prompts() -> None:
    command = [sys.executable, str(MODELS / "measure.py"), "--prompts", "8", "--tokens", "40"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["greedy_equal"] is True
    for name in ("standalone", "eagle", "eagle3", "dflash"):
        assert 2.2 <= measured[name]["accept_length"] <= 4.0, measured
