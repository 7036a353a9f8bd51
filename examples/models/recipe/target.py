"""The target: a Llama of eight layers that learns the small world from its text."""

import json
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from recipe import vocabulary
from recipe.batches import descend, pack
from recipe.documents import documents

SEED = 11
LAYERS, HIDDEN = 8, 128
ROPE_THETA = 10000.0


def small_llama(layers: int, hidden: int, intermediate: int, heads: int) -> LlamaForCausalLM:
    """Make an untrained Llama for the vocabulary, two query heads to a key head."""
    config = LlamaConfig(
        vocab_size=vocabulary.VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=vocabulary.CONTEXT_TOKENS,
        rms_norm_eps=1e-5,
        rope_theta=ROPE_THETA,
        tie_word_embeddings=True,
        bos_token_id=vocabulary.END_OF_TEXT_ID,
        eos_token_id=vocabulary.TURN_END_ID,
        pad_token_id=vocabulary.END_OF_TEXT_ID,
    )
    return LlamaForCausalLM(config)


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the model in bfloat16 with greedy decoding as its default."""
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=vocabulary.END_OF_TEXT_ID,
        eos_token_id=[vocabulary.TURN_END_ID, vocabulary.END_OF_TEXT_ID],
        pad_token_id=vocabulary.END_OF_TEXT_ID,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"  # also say rope_theta where readers of older files look for it
    config = json.loads(path.read_text()) | {"rope_theta": ROPE_THETA}
    path.write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
    (folder / "model.safetensors").chmod(0o644)


def load(folder: Path) -> LlamaForCausalLM:
    """Read a model folder back in float32, ready to be asked."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def train(folder: Path, steps: int) -> float:
    """Train the tokenizer and the target into `folder`; return the seconds of the descent."""
    torch.manual_seed(SEED)
    tokenizer = vocabulary.learn(SEED)
    vocabulary.save(tokenizer, folder)
    model = small_llama(LAYERS, HIDDEN, intermediate=352, heads=4).train()
    batches = pack(documents(SEED), tokenizer)

    def losses() -> torch.Tensor:
        ids = next(batches)  # [rows, row_tokens]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits
        return cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    seconds = descend("target", model, losses, steps)
    save(model, folder)
    return seconds
