"""The text side of a checkpoint: tokenizer, chat template, sampling defaults."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from specdecode_api.report import Reason
from specdecode_engine.grammar import TokenBytes
from specdecode_engine.serve.chat_template import ChatTemplate, Render
from specdecode_engine.serve.vocabulary import Vocabulary


class TokenizerUnusable(Exception):
    """The checkpoint's tokenizer cannot be used; the message names the folder and the remedy."""

    reason: ClassVar[Reason] = Reason.CHECKPOINT_INVALID

    def __init__(self, folder: Path, fault: str) -> None:
        super().__init__(f"{folder}: its tokenizer {fault}; save a tokenizer.json beside the model")


class SamplingDefaults(BaseModel):
    """What the checkpoint's generation_config.json proposes where a request says nothing."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)


@dataclass(frozen=True, slots=True)
class TextModel:
    """Everything that is needed between text and ids."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    chat: ChatTemplate
    defaults: SamplingDefaults
    vocab_size: int

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the ids of a text; safe in any thread."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of ids; special and unknown tokens have none."""
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        return self.tokenizer.decode(known, skip_special_tokens=True)

    def token_bytes(self, eos_ids: frozenset[int]) -> TokenBytes:
        """Return what every id adds to a text; takes seconds for a large vocabulary."""
        ids = range(self.vocab_size)
        return TokenBytes(
            spellings=[self.vocabulary.spelling(token_id) for token_id in ids],
            special_ids=self.vocabulary.special_ids.intersection(ids),
            eos_ids=eos_ids.intersection(ids),
        )


def load_text_model(folder: Path) -> TextModel:
    """Read a checkpoint folder in the Hugging Face layout.

    Raises:
        TokenizerUnusable: the folder has no tokenizer that this engine can use.
    """
    # Imported here: it takes seconds, and the server answers its probes meanwhile.
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TokenizerUnusable(folder, f"cannot be read ({error})") from error
    tokenizer = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerUnusable(folder, "is none of the fast ones")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextModel(
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        chat=ChatTemplate(_renderer(wrapped) if wrapped.chat_template else None),
        defaults=_read_defaults(folder / "generation_config.json"),
        vocab_size=_read_vocab_size(folder / "config.json") or tokenizer.get_vocab_size(),
    )


def _renderer(wrapped: Any) -> Render:
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
