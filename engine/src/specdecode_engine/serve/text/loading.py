"""Reads tokenizer, chat template and sampling defaults of a checkpoint."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from specdecode_api.report import TerminationReason
from specdecode_engine.batch.sampling_defaults import read_sampling_defaults
from specdecode_engine.serve.text.json_file import read_json_object
from specdecode_engine.serve.text.tokenizer import Stage, TextProcessor, Vocabulary, stages_of
from specdecode_engine.serve.text.tokenizer_file import read_tokenizer_file

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


@dataclass(frozen=True, slots=True)
class CheckpointTokenizer:
    """A checkpoint's tokenizer, and the one of transformers that has its chat template.

    `tokenizer` is that of tokenizer.json, and that of transformers where there is no such file;
    `rows` is the `vocab_size` of config.json.
    """

    tokenizer: Tokenizer
    wrapped: Any
    is_file: bool
    rows: int | None


def load_tokenizer(folder: Path) -> CheckpointTokenizer:
    """Read the tokenizer of a folder in the Hugging Face layout, or raise `TokenizerUnusable`."""
    # Imported here: it takes seconds, while the server already answers probes.
    from transformers import AutoTokenizer

    try:
        rows = _embedding_rows(folder)
        tokenizer = read_tokenizer_file(folder, rows)
        wrapped: Any = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, config=_plain_config(folder)
        )
    except Exception as error:  # transformers validates config.json too, with errors of its own
        raise TokenizerUnusable(folder, f"cannot be read ({error})") from error
    is_file = tokenizer is not None
    tokenizer = tokenizer if is_file else getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerUnusable(folder, "is not a fast tokenizer")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return CheckpointTokenizer(tokenizer, wrapped, is_file, rows)


def _plain_config(folder: Path) -> Any:
    """Return the keys from which transformers chooses a tokenizer class, None if it needs others.

    Without a config it builds one of the model's own class, and then imports torch._dynamo and
    torch.distributed: two seconds, a third of an engine's start on a CPU. Those keys are enough
    if tokenizer_config.json declares the class.
    """
    from transformers import PreTrainedConfig

    declared = read_json_object(folder / "tokenizer_config.json")
    written = read_json_object(folder / "config.json")
    if not written or not declared.get("tokenizer_class") or "auto_map" in declared:
        return None
    config = PreTrainedConfig()
    config.name_or_path = str(folder)
    for name in ("model_type", "model_name", "tokenizer_class"):
        if isinstance(value := written.get(name), str):
            setattr(config, name, value)
    return config


def _embedding_rows(folder: Path) -> int | None:
    config = read_json_object(folder / "config.json")
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return size if isinstance(size, int) else None


def load_text_model(folder: Path) -> TextProcessor:
    """Read a checkpoint folder in the Hugging Face layout, or raise `TokenizerUnusable`."""
    read = load_tokenizer(folder)
    tokenizer, wrapped = read.tokenizer, read.wrapped
    render = partial(wrapped.apply_chat_template, tokenize=False, add_generation_prompt=True)
    return TextProcessor(
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        apply_chat_template=render if wrapped.chat_template else None,
        chat_template=_template_source(wrapped.chat_template),
        concatenates_arguments=bool(wrapped.chat_template) and _concatenates_arguments(render),
        defaults=read_sampling_defaults(folder),
        vocab_size=tokenizer.get_vocab_size() if read.rows is None else read.rows,
        longest_token_chars=longest_token_chars(tokenizer),
        longest_token_bytes=longest_token_bytes(tokenizer),
        description=_describe(wrapped, folder),
    )


def _describe(wrapped: Any, folder: Path) -> dict[str, Any]:
    """Return what clients that render or tokenize themselves need, as vLLM's /tokenizer_info."""
    named = {name: str(token) for name, token in wrapped.special_tokens_map.items() if token}
    template = wrapped.chat_template
    return {
        **read_json_object(folder / "tokenizer_config.json"),
        **named,
        "tokenizer_class": type(wrapped).__name__,
        "chat_template": template if isinstance(template, str | dict) else None,
    }


def _concatenates_arguments(render: Callable[..., str]) -> bool:
    """Whether a chat template renders the arguments of calls as text only, as DeepSeek's do.

    Most templates convert an object to JSON, and many of them would quote a text again.
    """

    def accepts(arguments: object) -> bool:
        call = {
            "function": {"name": "f", "arguments": arguments},
            "type": "function",
            "id": "0" * 9,
        }
        asked = {"role": "user", "content": "?"}
        try:
            render([asked, {"role": "assistant", "content": "", "tool_calls": [call]}])
        except Exception:  # a template is a program and may raise anything
            return False
        return True

    return not accepts({"a": 1}) and accepts('{"a": 1}')


def _template_source(template: str | dict[str, str] | None) -> str:
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""


def longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Return the bytes of the longest token, special ones included, as it is spelled.

    Byte-level tokenizers spell a byte as a character, except in added tokens.
    """
    decoder = json.loads(tokenizer.to_str())["decoder"]
    is_byte_level = any(stage["type"] == "ByteLevel" for stage in stages_of(decoder))
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    texts = tokenizer.get_vocab(with_added_tokens=True)
    return max(
        len(text) if is_byte_level and text not in added else len(text.encode()) for text in texts
    )


def longest_token_chars(tokenizer: Tokenizer) -> int | None:
    """Return how many characters of a text one token stands for at most, None for any number.

    A token stands for no more characters than its spelling has: byte-level ones spell a byte as a
    character. Unbounded are tokens that strip white space around them, unknown tokens (they fuse,
    or stand for a whole word), and normalizers or pre-tokenizers that shorten a text.
    """
    parts = json.loads(tokenizer.to_str())
    stages = stages_of(parts["normalizer"]) + stages_of(parts["pre_tokenizer"])
    strips = any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"])
    spells_every_byte = _spells_every_byte(tokenizer, parts["model"], stages)
    if strips or not spells_every_byte or not _keeps_length(stages):
        return None
    composes = any(stage["type"] in _COMPOSING for stage in stages)
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
    return longest * (_COMPOSED_CHARS if composes else 1)


def _spells_every_byte(tokenizer: Tokenizer, model: Stage, stages: list[Stage]) -> bool:
    """Whether no text is ever unknown to the model."""
    if model.get("byte_fallback"):
        return None not in (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    has_bytes = any(stage["type"] == "ByteLevel" for stage in stages)
    return has_bytes and None not in map(tokenizer.token_to_id, ByteLevel.alphabet())


def _keeps_length(stages: list[Stage]) -> bool:
    """Whether nothing before the model removes or merges characters of a text."""
    for stage in stages:
        if stage["type"] not in _LENGTH_KEEPING or stage.get("behavior") == "Removed":
            return False
        if stage["type"] == "Replace":
            pattern = stage["pattern"].get("String")  # not a regular expression
            if pattern is None or len(stage["content"]) < len(pattern):
                return False
    return True
