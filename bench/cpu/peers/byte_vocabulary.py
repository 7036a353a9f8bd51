"""A byte-level BPE of any size, without training: every text has tokens and every token a text.

Three special tokens, the 256 bytes, pairs of letters, then pairs with a third letter. Written both
as Hugging Face's tokenizer.json and as fields of a GGUF, so that all peers read the same.
"""

import itertools
import json
import string
from dataclasses import dataclass
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD_ID, BOS_ID, EOS_ID = range(3)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LETTERS = string.ascii_lowercase
_MOST = len(SPECIAL) + 256 + len(_LETTERS) ** 2 + len(_LETTERS) ** 3


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and the pairs that make the long ones, strongest first."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]


def make_vocabulary(size: int) -> Vocabulary:
    """Return one of `size` tokens.

    Raises:
        ValueError: too few for all bytes, or more than there are words of three letters.
    """
    least = len(SPECIAL) + 256
    if not least <= size <= _MOST:
        raise ValueError(f"a vocabulary of {size} tokens: use {least} to {_MOST}")
    pairs = [(a, b) for a, b in itertools.product(_LETTERS, repeat=2)]
    triples = [(a + b, c) for a, b, c in itertools.product(_LETTERS, repeat=3)]
    merges = (pairs + triples)[: size - least]
    words = (left + right for left, right in merges)
    return Vocabulary((*SPECIAL, *byte_characters(), *words), tuple(merges))


def byte_characters() -> tuple[str, ...]:
    """Return the printable character that stands for each byte, as in GPT-2's vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


def write_tokenizer(folder: Path, size: int, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    vocabulary = make_vocabulary(size)
    special = [
        {"id": number, "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for number, token in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    document = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(vocabulary.tokens)},
            "merges": [list(pair) for pair in vocabulary.merges],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
        "bos_token": SPECIAL[BOS_ID],
        "eos_token": SPECIAL[EOS_ID],
        "pad_token": SPECIAL[PAD_ID],
    }
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
