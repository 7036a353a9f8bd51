"""The held-out prompts of the example models, as ids."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_prompts(
    examples: Path, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[tuple[int, ...], ...]:
    """Read prompts.json; chats go through the chat template."""
    prompts = []
    for entry in json.loads((examples / "prompts.json").read_text()):
        text = entry["text"]
        if entry["kind"] == "chat":
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        prompts.append(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return tuple(prompts)
