"""A tokenizer whose every token is a number, so that a text over HTTP names the emitted tokens."""

import json
from pathlib import Path

SPACE = "\u0120"  # as byte-level tokenizers write it
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a byte-level tokenizer in which token t is the text ` t`; the last two are special.

    Args:
        vocab: tokens, the special ones of beginning and end among them.
    """
    begin, end = vocab - 2, vocab - 1
    document = {
        "version": "1.0",
        "added_tokens": [_special(begin, "<s>"), _special(end, "</s>")],
        "normalizer": None,
        "pre_tokenizer": _BYTE_LEVEL,
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {f"{SPACE}{token}": token for token in range(begin)}
            | {"<s>": begin, "</s>": end},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text that this tokenizer decoded.

    Raises:
        ValueError: the text has something else than numbers.
    """
    return [int(word) for word in text.split()]


def _special(token: int, content: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": content, **flags, "special": True}
