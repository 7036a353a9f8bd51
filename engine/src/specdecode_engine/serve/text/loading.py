"""Reads tokenizer, chat template and sampling defaults of a checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from specdecode_api.report import TerminationReason
from specdecode_engine.serve.text.tokenizer import SamplingDefaults, TextProcessor, Vocabulary

# Normalizers and pre-tokenizers after which a text has no fewer characters, except that NFC and
# NFKC compose: a character stands for at most 4, which is the longest canonical decomposition.
_COMPOSING, _COMPOSED_CHARS = ("NFC", "NFKC"), 4
_LENGTH_KEEPING = (
    *_COMPOSING, "NFD", "NFKD", "ByteLevel", "Digits", "Metaspace", "Prepend", "Punctuation",
    "Replace", "Split",
)  # fmt: skip


class TokenizerUnusable(Exception):
    """The checkpoint's tokenizer cannot be used; the message names the folder and the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CHECKPOINT_INVALID

    def __init__(self, folder: Path, error: str) -> None:
        super().__init__(f"{folder}: its tokenizer {error}; save a tokenizer.json in this folder")


def load_text_model(folder: Path) -> TextProcessor:
    """Read a checkpoint folder in the Hugging Face layout.

    Raises:
        TokenizerUnusable: the folder has no tokenizer that this engine can use.
    """
    # Imported here: it takes seconds, while the server already answers probes.
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TokenizerUnusable(folder, f"cannot be read ({error})") from error
    tokenizer = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerUnusable(folder, "is not a fast tokenizer")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextProcessor(
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        apply_chat_template=_renderer(wrapped) if wrapped.chat_template else None,
        defaults=_read_defaults(folder / "generation_config.json"),
        vocab_size=_read_vocab_size(folder / "config.json") or tokenizer.get_vocab_size(),
        longest_token_chars=longest_token_chars(tokenizer),
    )


def longest_token_chars(tokenizer: Tokenizer) -> int | None:
    """Return how many characters of a text one token stands for at most, None for any number.

    A token stands for no more characters than its spelling has: byte-level ones spell a byte as a
    character. Unbounded are tokens that strip white space around them, unknown tokens (they fuse,
    or stand for a whole word), and normalizers or pre-tokenizers that shorten a text.
    """
    parts = json.loads(tokenizer.to_str())
    strips = any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"])
    if strips or not (_spells_every_byte(tokenizer, parts) and _keeps_length(parts)):
        return None
    composes = any(stage["type"] in _COMPOSING for stage in _stages(parts))
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
    return longest * (_COMPOSED_CHARS if composes else 1)


def _spells_every_byte(tokenizer: Tokenizer, parts: dict[str, Any]) -> bool:
    """Whether no text is ever unknown to the model."""
    if parts["model"].get("byte_fallback"):
        return all(tokenizer.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    has_bytes = "ByteLevel" in {part["type"] for part in _stages(parts)}
    return has_bytes and all(
        tokenizer.token_to_id(char) is not None for char in ByteLevel.alphabet()
    )


def _keeps_length(parts: dict[str, Any]) -> bool:
    """Whether nothing before the model removes or merges characters of a text."""
    for stage in _stages(parts):
        if stage["type"] not in _LENGTH_KEEPING or stage.get("behavior") == "Removed":
            return False
        if stage["type"] == "Replace" and not _replaces_no_shorter(stage):
            return False
    return True


def _replaces_no_shorter(stage: dict[str, Any]) -> bool:
    pattern = stage["pattern"].get("String")
    return pattern is not None and len(stage["content"]) >= len(pattern)


def _stages(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the normalizers and pre-tokenizers, those of sequences one by one."""
    stages: list[dict[str, Any]] = []
    todo = [part for part in (parts["normalizer"], parts["pre_tokenizer"]) if part]
    while todo:
        part = todo.pop()
        inner = part.get("normalizers") or part.get("pretokenizers")
        if inner:
            todo += inner
        else:
            stages.append(part)
    return stages


def _renderer(wrapped: Any) -> Callable[[list[dict[str, Any]]], str]:
    return lambda messages: str(
        wrapped.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    )


def _read_defaults(path: Path) -> SamplingDefaults:
    given = {name: value for name, value in _read_json(path).items() if value is not None}
    return SamplingDefaults.model_validate(given)


def _read_vocab_size(path: Path) -> int | None:
    config = _read_json(path)
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return size if isinstance(size, int) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}
