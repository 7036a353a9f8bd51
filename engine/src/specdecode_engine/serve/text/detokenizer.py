"""Token ids to text, one token at a time, without incomplete characters."""

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
        self._decoder = _utf8(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        if token_id in self._visible_ids:
            return self._decoder.decode(self._vocabulary.spelling(token_id))
        return self._decoder.decode(self._vocabulary.text_bytes(token_id))

    def flush(self) -> str:
        """Return the replacement of an incomplete character at the end, if there is one."""
        return self._decoder.decode(b"", final=True)
