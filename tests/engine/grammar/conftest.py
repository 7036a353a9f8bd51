"""A vocabulary of 97 tokens, as wide as the tiny checkpoints, and grammars over it."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    Matcher,
    TokenBytes,
)

EOS = 5
SPECIAL = {0: b"<pad>", 1: b"<s>", EOS: b"</s>"}
SINGLE = 'abcdefghijklmnopqrstuvwxyz0123456789 \n{}[]":,.-+*/()_'
LONGER = [
    "ab",
    "abc",
    "ca",
    "tr",
    "true",
    "false",
    "null",
    '{"',
    '":',
    '",',
    '"}',
    "10",
    "  ",
    '["',
]


def spell() -> list[bytes]:
    """Single characters, longer pieces, halves of characters, twins, and ids without bytes."""
    pieces = [char.encode() for char in SINGLE] + [piece.encode() for piece in LONGER]
    pieces += [b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", "é".encode(), b"a", b"abc"]
    spellings = [b""] * 97
    free = [token for token in range(97) if token not in SPECIAL]
    for token, piece in zip(free, pieces, strict=False):
        spellings[token] = piece
    for token, piece in SPECIAL.items():
        spellings[token] = piece
    assert spellings[-1] == b""
    return spellings


@pytest.fixture(scope="session")
def spellings() -> list[bytes]:
    return spell()


@pytest.fixture(scope="session")
def compiler(spellings: list[bytes]) -> GrammarCompiler:
    return GrammarCompiler(TokenBytes(spellings, frozenset(SPECIAL), frozenset({EOS})))


@pytest.fixture(scope="session")
def compile_text(compiler: GrammarCompiler) -> Callable[..., Grammar]:
    def compile_one(kind: str, text: str, is_strict: bool = True) -> Grammar:
        return compiler.compile(GrammarSource(GrammarKind(kind), text, is_strict))

    return compile_one


def allowed_tokens(matcher: Matcher, vocab: int = 97) -> set[int]:
    """Read a mask."""
    words = np.zeros(-(-vocab // 32), dtype=np.int32)
    matcher.fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.nonzero(bits)[0].tolist())


@pytest.fixture(scope="session")
def allowed() -> Callable[[Matcher], set[int]]:
    return allowed_tokens


@pytest.fixture(scope="session")
def text_of(spellings: list[bytes]) -> Callable[[Sequence[int]], bytes]:
    return lambda tokens: b"".join(b"" if t in SPECIAL else spellings[t] for t in tokens)
