"""Incremental detokenization: token ids to text, without incomplete characters."""

import codecs

from specdecode_engine.serve.text.vocabulary import Vocabulary

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence so far.

    The pieces of all tokens, then that of `flush`, join to the whole text. Bytes that are not
    valid UTF-8 become U+FFFD as soon as that is certain.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = _utf8(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        return self._decoder.decode(self._vocabulary.text_bytes(token_id))

    def flush(self) -> str:
        """Return the replacement of an incomplete character at the end, if there is one."""
        return self._decoder.decode(b"", final=True)
