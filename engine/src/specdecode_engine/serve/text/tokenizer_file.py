"""The tokenizer of tokenizer.json, as `tokenizers` reads it.

AutoTokenizer of transformers 5 takes the vocabulary of that file, and for many classes puts its own
normalizer, pre-tokenizer and decoder in place of the file's; the class follows from
`tokenizer_class` or from the model type. A prompt then has other ids than those that the model was
trained with.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from specdecode_engine.serve.text.json_file import read_json_object

NAME = "tokenizer.json"


def read_tokenizer_file(folder: Path, vocab_size: int | None) -> Tokenizer | None:
    """Read the file with the special tokens of tokenizer_config.json; None without a file.

    A token that the file has keeps its id. One that it lacks is added if the config states the id
    that comes next and the model has a row for it, which are `vocab_size`.

    Raises:
        Exception: the file is not a tokenizer; `tokenizers` has no type of its own for that.
    """
    file = folder / NAME
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    config = read_json_object(folder / "tokenizer_config.json")
    stated = config.get("added_tokens_decoder")
    tokens = dict(_stated_tokens(stated)) if isinstance(stated, dict) else {}
    _add_missing(tokenizer, tokens, vocab_size)
    names = {**read_json_object(folder / "special_tokens_map.json"), **config}
    special = [token.content for token in tokens.values() if token.special]
    _mark_special(tokenizer, {*special, *_named(names)})
    tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
    return tokenizer


def _stated_tokens(stated: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for token_id, entry in stated.items():
        content = _content(entry)
        if content is not None and token_id.isdecimal():
            known = {flag: entry[flag] is True for flag in flags if flag in entry}
            yield int(token_id), AddedToken(content, **known)


def _add_missing(
    tokenizer: Tokenizer, tokens: Mapping[int, AddedToken], vocab_size: int | None
) -> None:
    for token_id, token in sorted(tokens.items(), key=lambda item: item[0]):
        is_next = token_id == tokenizer.get_vocab_size(with_added_tokens=True)
        has_row = vocab_size is None or token_id < vocab_size
        if is_next and has_row and tokenizer.token_to_id(token.content) is None:
            tokenizer.add_tokens([token])


def _mark_special(tokenizer: Tokenizer, spellings: set[str]) -> None:
    """Make tokens of the file special; those that are added tokens keep their other flags."""
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    for spelling in sorted(spellings):
        token = added.get(spelling)
        if token is None:
            if tokenizer.token_to_id(spelling) is not None:
                tokenizer.add_special_tokens([spelling])
        elif not token.special:
            token.special = True
            tokenizer.add_special_tokens([token])


def _named(config: Mapping[str, Any]) -> Iterator[str]:
    """Return the special tokens of a config: `eos_token` and its like, and lists of more."""
    for key, value in config.items():
        if key in ("additional_special_tokens", "extra_special_tokens"):
            entries = value.values() if isinstance(value, dict) else value
            found = map(_content, entries if isinstance(value, dict | list) else ())
        elif key.endswith("_token"):
            found = map(_content, [value])
        else:
            continue
        yield from (content for content in found if content)


def _content(entry: object) -> str | None:
    """Return the spelling of a token, which is a string or an object with `content`."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) and content else None
