"""Ids to text, one token at a time, never half a character."""

import codecs

from specdecode_engine.serve.vocabulary import Vocabulary

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence so far.

    The pieces of all tokens, then that of `flush`, join to the text of the whole; bytes that are
    no UTF-8 become U+FFFD as soon as that is certain.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = _utf8(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        return self._decoder.decode(self._vocabulary.text_bytes(token_id))

    def flush(self) -> str:
        """Return what an unfinished character becomes at the end."""
        return self._decoder.decode(b"", final=True)
