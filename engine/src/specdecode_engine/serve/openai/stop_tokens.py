"""The tokens that end an answer by themselves, and where each comes from.

Everywhere these are the union of what config.json, generation_config.json and the tokenizer name
as EOS: published checkpoints often have the right one in one of the three only. In chat the special
token that the chat template writes right after an assistant's content ends the answer too, if
templates do not write it inside an assistant's turn as well. No other token does.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.openai.chat_prompt import render_conversation
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.text.tokenizer import TextProcessor, Vocabulary

TEMPLATE = "chat template"
TOKENIZER_CLASS, ARCHITECTURE = "default of the tokenizer's class", "default of the architecture"
CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")

# What the parts of a conversation are found by again in a rendered text.
_THOUGHT, _CONTENT, _NEXT = "thoughtofaturn", "contentofaturn", "nextquestion"
_ARGUMENTS = ("argumentofacall", "argumentofanother")


@dataclass(frozen=True, slots=True)
class StopToken:
    """A token that ends an answer, and what names it; `text` is empty without a tokenizer."""

    token_id: int
    text: str
    sources: tuple[str, ...]

    @property
    def is_for_chat(self) -> bool:
        """Whether it ends answers of chat only."""
        return self.sources == (TEMPLATE,)


@dataclass(frozen=True, slots=True)
class StopTokens:
    """The tokens that end an answer, ordered by id."""

    tokens: tuple[StopToken, ...] = ()

    def ids(self, *, in_chat: bool) -> frozenset[int]:
        """Return the ids that end an answer, of chat or of the other APIs."""
        return frozenset(each.token_id for each in self.tokens if in_chat or not each.is_for_chat)

    def document(self) -> list[dict[str, object]]:
        """Return what `/server_info` and `check` list."""
        return [
            {
                "id": each.token_id,
                "token": each.text,
                "sources": list(each.sources),
                "chat_only": each.is_for_chat,
            }
            for each in self.tokens
        ]

    def lines(self) -> list[str]:
        """Return the same for people."""
        return [
            f"{each.token_id} {each.text}".rstrip()
            + f" ({', '.join(each.sources)})"
            + (", in chat only" if each.is_for_chat else "")
            for each in self.tokens
        ]


def read_stop_tokens(
    folder: Path, eos_token_ids: Iterable[int], text: TextProcessor, formats: MessageFormats
) -> StopTokens:
    """Return the tokens of a checkpoint.

    Args:
        eos_token_ids: those of the model: of config.json and generation_config.json.
    """
    sources = _config_sources(folder, eos_token_ids)
    named = [(text.tokenizer.token_to_id(token), name) for token, name in _eos_tokens(folder, text)]
    for token_id, source in (*named, (template_end(text, formats), TEMPLATE)):
        if token_id is not None and token_id < text.vocab_size:
            sources[token_id] = (*sources.get(token_id, ()), source)
    shown = text.vocabulary.shown
    return StopTokens(
        tuple(StopToken(each, shown(each), names) for each, names in sorted(sources.items()))
    )


def config_stop_tokens(folder: Path, eos_token_ids: Iterable[int]) -> StopTokens:
    """Return the tokens of a folder without a tokenizer."""
    sources = _config_sources(folder, eos_token_ids)
    return StopTokens(tuple(StopToken(each, "", sources[each]) for each in sorted(sources)))


def _config_sources(folder: Path, token_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Return the files that name each EOS token of the model; architectures have defaults."""
    named = {name: frozenset(_ids_in(folder / name)) for name in CONFIG_FILES}
    found = {token: tuple(name for name in named if token in named[name]) for token in token_ids}
    return {token: names or (ARCHITECTURE,) for token, names in found.items()}


def _ids_in(file: Path) -> Iterator[int]:
    """Yield what a config names as EOS, in its sections too."""
    content = _read_object(file)
    for section in (content, *content.values()):
        ids = section.get("eos_token_id") if isinstance(section, Mapping) else None
        listed = ids if isinstance(ids, list) else [ids]
        yield from (token for token in listed if isinstance(token, int))


def _read_object(file: Path) -> Mapping[str, object]:
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return content if isinstance(content, Mapping) else {}


def _eos_tokens(folder: Path, text: TextProcessor) -> Iterator[tuple[str, str]]:
    """Yield the tokenizer's `eos_token` and where it is named.

    transformers 5 prefers special_tokens_map.json, versions before it tokenizer_config.json, and
    its classes have defaults: what any of them would end an answer with does.
    """
    known = set()
    for name in TOKENIZER_FILES:
        token = _read_object(folder / name).get("eos_token")
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            known.add(token)
            yield token, name
    token = text.description.get("eos_token")
    if isinstance(token, str) and token not in known:
        yield token, TOKENIZER_CLASS


def template_end(text: TextProcessor, formats: MessageFormats) -> int | None:
    """Return the special token that the chat template writes right after an assistant's content.

    White space may come between, and markers that the parsers of messages read. None without such
    a token; and for one that is also written between thoughts, content and calls of one turn, as
    `<|end|>` in harmony, whose parser knows the ends.
    """
    if text.apply_chat_template is None or formats.is_harmony:
        return None
    rendered = _render(text, [_answer(content=_CONTENT), {"role": "user", "content": _NEXT}])
    start, end = rendered.find(_CONTENT), rendered.rfind(_NEXT)
    if not 0 <= start < end:
        return None
    markers = text.vocabulary.special_tokens(formats.special_tokens(has_tools=True))
    token_id = _first_special(rendered[start + len(_CONTENT) : end], text.vocabulary, markers)
    if token_id is None:
        return None
    spelling = text.vocabulary.shown(token_id)
    return None if any(spelling in turn for turn in _turns(text)) else token_id


def _first_special(tail: str, vocabulary: Vocabulary, markers: frozenset[int]) -> int | None:
    """Return the special token that a text begins with, after any white space and markers."""
    spellings = {vocabulary.shown(token_id): token_id for token_id in vocabulary.special_ids}
    by_length = sorted(filter(str.strip, spellings), key=len, reverse=True)
    while True:
        tail = tail.lstrip()
        found = next((each for each in by_length if tail.startswith(each)), None)
        if found is None or spellings[found] not in markers:
            return None if found is None else spellings[found]
        tail = tail[len(found) :]


def _turns(text: TextProcessor) -> Iterator[str]:
    """Yield turns of an assistant with several parts, each from its first part to its last one.

    Templates that refuse a turn, or render one part of it only, yield nothing for it.
    """
    calls = [_call(argument) for argument in _ARGUMENTS]
    for content, count in ((_CONTENT, 2), (_CONTENT, 1), ("", 2), ("", 1), (_CONTENT, 0)):
        turn = _answer(content=content, reasoning_content=_THOUGHT, tool_calls=calls[:count])
        rendered = _render(text, [turn], has_tools=count > 0)
        places = [rendered.rfind(each) for each in (_THOUGHT, _CONTENT, *_ARGUMENTS)]
        found = [place for place in places if place >= 0]
        if len(found) > 1:
            yield rendered[min(found) : max(found)]


def _answer(**fields: object) -> dict[str, object]:
    return {"role": "assistant", **fields}


def _call(argument: str) -> dict[str, object]:
    function = {"name": "search", "arguments": f'{{"query": "{argument}"}}'}
    return {"id": f"call_{argument}", "type": "function", "function": function}


def _render(
    text: TextProcessor, turns: Sequence[dict[str, Any]], *, has_tools: bool = False
) -> str:
    """Return a conversation that a user begins; empty if the template refuses it."""
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    function = {"name": "search", "description": "Search.", "parameters": schema}
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "question"}, *turns],
        "add_generation_prompt": False,
    }
    if has_tools:
        fields["tools"] = [{"type": "function", "function": function}]
    try:
        return render_conversation(ChatBody.model_validate(fields), text)
    except HttpError:
        return ""
