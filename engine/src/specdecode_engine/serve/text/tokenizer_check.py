"""What `specdecode-engine check` reports of a tokenizer: whose ids differ on a fixed text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from specdecode_api.speculation import Algorithm
from specdecode_engine.serve.text import tokenizer_file
from specdecode_engine.serve.text.loading import (
    CheckpointTokenizer,
    TokenizerUnusable,
    load_tokenizer,
)
from specdecode_engine.startup.model_check import PairCheck

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two spaces before, two after  ",
    "turn 1 12 123 1234 12345 3.14159",
    "I'm sure they'll see we'd've DON'T",
    "größer naïve café, e\u0301 and é, ﬁne, ½",
    "北京の天気は？ 안녕하세요 Привет नमस्ते",
    "😀👩\u200d👩\u200d👧 ok",
    "def f(x):\n\treturn x  # a\r\n\r\n    pass\n\n\n",
    "a\u00a0b\u2028c\tD",
    "https://example.org/a?b=c&d=%20#e_f-g",
)
"""Where normalizers, pre-tokenizers and vocabularies in use differ."""

MAX_ADDED = 8
"""Added tokens that are tried; some files have thousands."""

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class TokenizerCheck:
    """A tokenizer.json, and the class that transformers uses with it.

    `difference` describes the texts to which that class gives other ids, None without any.
    """

    transformers_class: str
    difference: str | None


def check_tokenizers(pair: PairCheck) -> tuple[PairCheck, TokenizerCheck | None]:
    """Compare the ids of a target's tokenizer.json with those of transformers; None: no file.

    A tokenizer at which an engine would end its start refuses the pair, and a STANDALONE draft
    with other ids has a warning. Nothing is read of a pair that cannot be served anyway.
    """
    if not pair.is_served or not _has_file(pair.target.path):
        return pair, None
    try:
        read = load_tokenizer(pair.target.path)
    except TokenizerUnusable as error:
        return replace(pair, target=replace(pair.target, reason=str(error))), None
    if pair.draft is not None and pair.algorithm is Algorithm.STANDALONE:
        pair = replace(pair, draft=replace(pair.draft, warning=_warning(read, pair.draft.path)))
    return pair, _compare_with_class(read)


def _has_file(folder: Path) -> bool:
    return (folder / tokenizer_file.NAME).is_file()


def _compare_with_class(read: CheckpointTokenizer) -> TokenizerCheck:
    by_class = read.wrapped

    def encode(text: str) -> Sequence[int]:
        ids: Sequence[int] = by_class(text, add_special_tokens=False)["input_ids"]
        return ids

    found = first_difference(_texts(read), encode_with(read.tokenizer), encode)
    return TokenizerCheck(type(by_class).__name__, found)


def _warning(target: CheckpointTokenizer, draft: Path) -> str | None:
    """Return how a draft's tokenizer.json differs from the target's; None: not, or no file."""
    if not _has_file(draft):
        return None
    try:
        own = tokenizer_file.read_tokenizer_file(draft, target.rows)
    except Exception as error:
        return f"its tokenizer.json cannot be read ({error}); the target's encodes prompts"
    if own is None:
        return None
    found = first_difference(_texts(target), encode_with(target.tokenizer), encode_with(own))
    return found and f"its tokenizer encodes {found}; use a draft with the target's tokenizer"


def encode_with(tokenizer: Tokenizer) -> Encode:
    """Return what an engine encodes texts with."""
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def first_difference(texts: Sequence[str], encode: Encode, other: Encode) -> str | None:
    """Count the texts to which `other` gives other ids, and describe the shortest; None: none."""
    different = [text for text in texts if list(encode(text)) != list(other(text))]
    if not different:
        return None
    shown = min(different, key=len)
    return (
        f"{len(different)} of {len(texts)} texts differently: {shown!r} as "
        f"{list(other(shown))}, not {list(encode(shown))}"
    )


def _texts(read: CheckpointTokenizer) -> list[str]:
    """Return the fixed text, added tokens of the file, and those that a class brings along."""
    added = [token.content for token in read.tokenizer.get_added_tokens_decoder().values()]
    named = [str(token) for token in read.wrapped.special_tokens_map.values() if token]
    spellings = sorted({*added[:MAX_ADDED], *named})
    return [*TEXTS, *(f"turn{each}return {each} end" for each in spellings)]
