"""Token id to bytes: exactly what each token adds to a text, independent of its context.

Tokenizers decode lists, not tokens, since a token may end inside a character. The two families in
use have exact bytes per token: byte-level BPE spells bytes in an alphabet of printable characters;
sentencepiece spells a space as U+2581 and a lone byte as `<0xE2>`. For anything else, a token's
bytes are what it appends to another token.
"""

import json
import re

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

LONE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Return byte-level BPE's alphabet: printable Latin-1 unchanged, other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(256 + index), byte) for index, byte in enumerate(others))
    assert set(alphabet) == set(ByteLevel.alphabet())
    return alphabet


class Vocabulary:
    """The bytes of every token; special tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._tokenizer = tokenizer
        decoders = _decoder_names(json.loads(tokenizer.to_str())["decoder"])
        self._alphabet = _byte_alphabet() if "ByteLevel" in decoders else None
        self._has_lone_bytes = "ByteFallback" in decoders
        added = tokenizer.get_added_tokens_decoder()
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

    def _spell(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self.special_ids:
            return token.encode()
        if self._alphabet is not None:
            return _spell_byte_level(token, self._alphabet)
        lone = LONE_BYTE.fullmatch(token) if self._has_lone_bytes else None
        return bytes([int(lone[1], 16)]) if lone else self._appended(token_id)

    def _appended(self, token_id: int) -> bytes:
        if self._anchor is None:
            return self._tokenizer.decode([token_id]).encode()
        before = self._tokenizer.decode([self._anchor])
        after = self._tokenizer.decode([self._anchor, token_id])
        return after[len(before) :].encode()

    def _find_anchor(self) -> int | None:
        for token_id in range(self.size):
            token = self._tokenizer.id_to_token(token_id)
            if token and token.isalnum() and token_id not in self.special_ids:
                return token_id
        return None


def _spell_byte_level(token: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes([alphabet[char] for char in token])
    except KeyError:  # an added token is stored as plain text
        return token.encode()


def _decoder_names(decoder: dict[str, object] | None) -> set[str]:
    if decoder is None:
        return set()
    inner = decoder.get("decoders")
    names = {str(decoder["type"])}
    for part in inner if isinstance(inner, list) else []:
        names |= _decoder_names(part)
    return names
