"""Token ids to text as they arrive, without incomplete characters."""

import codecs

from specdecode_engine.serve.text.tokenizer import Vocabulary

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence so far.

    The pieces of all tokens, then that of `flush`, join to the whole text. Bytes that are not
    valid UTF-8 become U+FFFD as soon as that is certain. Of special tokens only `visible_ids` have
    a text, their spelling.
    """

    def __init__(self, vocabulary: Vocabulary, visible_ids: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._visible_ids = visible_ids
        self._bytes = self._visible_bytes if visible_ids else vocabulary.text_bytes
        self._decoder = _utf8(errors="replace")

    @property
    def num_held(self) -> int:
        """Characters that have begun and are incomplete: 0 or 1."""
        return bool(self._decoder.getstate()[0])

    def push(self, *token_ids: int) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(b"".join(map(self._bytes, token_ids)))

    def flush(self) -> str:
        """Return the replacement of an incomplete character at the end, if there is one."""
        return self._decoder.decode(b"", final=True)

    def _visible_bytes(self, token_id: int) -> bytes:
        if token_id in self._visible_ids:
            return self._vocabulary.spelling(token_id)
        return self._vocabulary.text_bytes(token_id)
