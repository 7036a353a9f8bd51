"""Text to token ids and back: the tokenizer, the bytes of each token, the chat template.

Tokenizers decode lists, not tokens, since a token may end inside a character. The two families in
use have exact bytes per token: byte-level BPE spells bytes in an alphabet of printable characters;
sentencepiece spells a space as U+2581 and a lone byte as `<0xE2>`. For anything else, a token's
bytes are what it appends to another token.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokenizers import Encoding, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from specdecode_engine.batch.sampling_defaults import SamplingDefaults
from specdecode_engine.grammar import TokenBytes
from specdecode_engine.serve import errors

Stage = dict[str, Any]  # of a tokenizer, as tokenizer.json describes it
LONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """The bytes of every token; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._tokenizer = tokenizer
        stages = stages_of(json.loads(tokenizer.to_str())["decoder"])
        decoders = {stage["type"] for stage in stages}
        self._alphabet = _byte_alphabet() if "ByteLevel" in decoders else None
        self._has_lone_bytes = "ByteFallback" in decoders
        added = tokenizer.get_added_tokens_decoder()
        self.added_tokens = tuple(token.content for token in added.values())
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._anchor = None if self._alphabet else self._find_anchor()
        self._known: dict[int, bytes] = {}

    def text_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text: none for special and unknown tokens."""
        return b"" if token_id in self.special_ids else self.spelling(token_id)

    def spelling(self, token_id: int) -> bytes:
        """Return the bytes of a token; of a special one, its name."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def special_tokens(self, spellings: Iterable[str]) -> frozenset[int]:
        """Return the ids of those special tokens that the vocabulary has."""
        ids = (self._tokenizer.token_to_id(spelling) for spelling in spellings)
        return self.special_ids.intersection(ids)

    def shown(self, token_id: int) -> str:
        """Return a token as text, with a replacement for an incomplete character."""
        return self.spelling(token_id).decode(errors="replace")

    def _spell(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self.special_ids:
            return token.encode()
        if self._alphabet is not None:
            try:
                return bytes([self._alphabet[char] for char in token])
            except KeyError:  # an added token is stored as plain text
                return token.encode()
        lone = LONE_BYTE.fullmatch(token) if self._has_lone_bytes else None
        return bytes([int(lone[1], 16)]) if lone else self._appended(token_id)

    def _appended(self, token_id: int) -> bytes:
        if self._anchor is None:
            return self._tokenizer.decode([token_id]).encode()
        before = self._tokenizer.decode([self._anchor])
        after = self._tokenizer.decode([self._anchor, token_id])
        return after[len(before) :].encode()

    def _find_anchor(self) -> int | None:
        tokens = ((self._tokenizer.id_to_token(index), index) for index in range(self.size))
        words = (index for token, index in tokens if token and token.isalnum())
        return next((index for index in words if index not in self.special_ids), None)


def _byte_alphabet() -> dict[str, int]:
    """Return byte-level BPE's alphabet: printable Latin-1 unchanged, other bytes from U+0100 on."""
    chars = sorted(ByteLevel.alphabet())
    printable = {char: ord(char) for char in chars if ord(char) < 256}
    others = sorted({*range(256)}.difference(printable.values()))
    return printable | dict(zip(chars[len(printable) :], others, strict=True))


def stages_of(part: Stage | None) -> list[Stage]:
    """Return the stages of a tokenizer's decoder, normalizer or pre-tokenizer one by one."""
    if part is None or part["type"] != "Sequence":
        return [part] if part else []
    kinds = ("decoders", "normalizers", "pretokenizers")
    stages = next(part[kind] for kind in kinds if kind in part)
    return [inner for stage in stages for inner in stages_of(stage)]


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """Converts between text and token ids.

    `chat_template` is the source of the checkpoint's template, or of all its templates; empty
    without one; `concatenates_arguments` if it takes the arguments of calls as JSON text only.
    `longest_token_chars` is the most characters of a text that one token stands for;
    None where the vocabulary does not bound it. `longest_token_bytes` is the length of the longest
    token. `description` is the checkpoint's tokenizer_config.json with the chat template in use.
    """

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    apply_chat_template: Callable[..., str] | None
    chat_template: str
    concatenates_arguments: bool
    defaults: SamplingDefaults
    vocab_size: int
    longest_token_chars: int | None
    longest_token_bytes: int
    description: Mapping[str, Any]

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the ids of a text; safe in any thread."""
        return tuple(self._encode(text, add_special_tokens).ids)

    def encode_prompt(
        self, text: str, field: str, context_length: int, add_special_tokens: bool = True
    ) -> tuple[int, ...]:
        """Return the ids of a prompt; safe in any thread.

        Raises `HttpError` for one that exceeds the context: before it is encoded where its length
        shows that, and before its ids are copied, which takes the GIL for long where there are
        millions.
        """
        self.check_length(text, field, context_length)
        encoding = self._encode(text, add_special_tokens)
        if len(encoding) > context_length:
            raise errors.too_long(
                f"{field} has {len(encoding)} tokens; the model's context is {context_length} "
                f"tokens; shorten {field}",
                field,
            )
        return tuple(encoding.ids)

    def _encode(self, text: str, add_special_tokens: bool) -> Encoding:
        """Encode a batch of one: only batches are encoded without the GIL.

        `encode_batch_fast` omits offsets and returns the same ids.
        """
        encode = self.tokenizer.encode_batch_fast
        return encode([text], add_special_tokens=add_special_tokens)[0]

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        field: str = "messages",
    ) -> str:
        """Return the prompt for the assistant's next message, by the checkpoint's chat template.

        `variables` are further variables of the template. Raises `HttpError`, which names `field`,
        if there is no template, or it refuses the messages.
        """
        if self.apply_chat_template is None:
            message = "this model has no chat template; use /v1/completions"
            raise errors.invalid(field, message, "no_chat_template")
        try:
            return self.apply_chat_template(list(messages), tools=list(tools) or None, **variables)
        except Exception as error:  # a template is a program and may raise anything
            message = f"the model's chat template refuses the messages: {error}"
            raise errors.invalid(field, message) from error

    def check_length(self, text: str, field: str, context_length: int) -> None:
        """Raise `HttpError` for a text that cannot fit the context, before encoding it."""
        longest = self.longest_token_chars
        if longest is not None and len(text) > (most := context_length * longest):
            raise errors.too_long(
                f"{field} has {len(text)} characters; the model's context of {context_length} "
                f"tokens holds at most {most} ({longest} for each token); "
                f"shorten {field} or raise the context length",
                field,
            )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids; unknown tokens have none.

        A batch of one: only batches are decoded without the GIL.
        """
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        texts = self.tokenizer.decode_batch([known], skip_special_tokens=skip_special_tokens)
        return str(texts[0])

    def token_bytes(self, eos_ids: frozenset[int]) -> TokenBytes:
        """Return the bytes of every token; takes seconds for a large vocabulary."""
        ids = range(self.vocab_size)
        return TokenBytes(
            spellings=[self.vocabulary.spelling(token_id) for token_id in ids],
            special_ids=self.vocabulary.special_ids.intersection(ids),
            eos_ids=eos_ids.intersection(ids),
        )
