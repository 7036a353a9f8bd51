"""The tokenizer: byte-level BPE over the same text, in the Hugging Face layout."""

import json
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from recipe.documents import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START, documents

VOCAB_SIZE = 1024
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID = 0, 1, 2
CONTEXT_TOKENS = 2048


def learn(seed: int, count: int = 8000) -> Tokenizer:
    """Learn the merges from the first documents; digits stay single, so that sums are learnable."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?\p{L}+| ?[^\s\p{L}\d]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    plain = (
        text.replace(END_OF_TEXT, "").replace(TURN_START, "").replace(TURN_END, "")
        for text in islice(documents(seed), count)
    )
    tokenizer.train_from_iterator(plain, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the three tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
        "additional_special_tokens": [TURN_START],
        "chat_template": CHAT_TEMPLATE,
        **special,
    }
    for name, content in (("tokenizer_config", config), ("special_tokens_map", special)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def load(folder: Path) -> Tokenizer:
    """Read the tokenizer of a model folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
