"""Which tokens end an answer: files of a checkpoint, and what published chat templates write.

The templates are those of the models' repositories on the Hub, as the package trl contains them.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from specdecode_api.boot import ServerBoot
from specdecode_engine.cli.check.command import check
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.serve.openai.chat_prompt import render_conversation
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.stop_tokens import read_stop_tokens, template_end
from specdecode_engine.serve.parsers.formats import MessageFormats, resolve_formats
from specdecode_engine.serve.text.loading import load_text_model
from specdecode_engine.serve.text.tokenizer import TextProcessor, Vocabulary

EXAMPLE = Path(__file__).parents[4] / "examples" / "models" / "target"
SPEC = find_spec("trl")
assert SPEC is not None
assert SPEC.origin is not None
TEMPLATES = Path(SPEC.origin).parent / "chat_templates"
END_OF_TURN = "<|END_OF_TURN_TOKEN|>"


@dataclass(frozen=True)
class Family:
    """A published template: what ends an answer of chat, further special tokens, its calls."""

    end: str | None
    others: list[str]
    calls: int = 2
    has_argument_text: bool = False


CHATML = Family("<|im_end|>", ["<|im_start|>", "<|endoftext|>"])
FAMILIES = {
    "cohere": Family(END_OF_TURN, ["<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"], calls=0),
    "deepseekv3": Family(
        "<｜end▁of▁sentence｜>",
        ["<｜Assistant｜>", "<｜User｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>"],
        has_argument_text=True,
    ),
    "gemma3": Family("<end_of_turn>", ["<start_of_turn>"], calls=0),
    "gemma4": Family(
        "<turn|>", ["<|turn>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"]
    ),
    "glm4moe": Family("<|user|>", ["<|assistant|>", "<|observation|>", "<|system|>"]),
    "gptoss": Family(
        None, ["<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"], 1
    ),
    "lfm2_2_5_v2": CHATML,
    "llama3_1": Family("<|eot_id|>", ["<|eom_id|>", "<|start_header_id|>", "<|python_tag|>"], 1),
    "muse_glimmer": Family("<|eot|>", ["<|eom|>", "<|message|>"]),
    "nemotron_3_nano": CHATML,
    "phi3": Family("<|end|>", ["<|assistant|>", "<|user|>"], calls=0),
    "qwen3": CHATML,
    "qwen3_5_think": CHATML,
}
THOUGHT, CONTENT, FIRST, SECOND = "whichtool", "lookingitup", "firstplace", "secondplace"


@pytest.fixture(scope="module")
def example() -> TextProcessor:
    return load_text_model(EXAMPLE)


@pytest.fixture(scope="module")
def with_template(example: TextProcessor) -> Callable[..., TextProcessor]:
    """Return the example's text processor with further special tokens and another template."""
    tokenizer = Tokenizer.from_str(example.tokenizer.to_str())
    ends = {family.end for family in FAMILIES.values() if family.end}
    tokenizer.add_special_tokens(
        [*ends, *(each for one in FAMILIES.values() for each in one.others)]
    )
    tokenizer.add_special_tokens(["<|START_RESPONSE|>", "<|END_RESPONSE|>"])
    tokenizer.add_tokens(["<|plain|>"])
    vocabulary = Vocabulary(tokenizer)

    def make(template: str, has_argument_text: bool = False) -> TextProcessor:
        assert example.apply_chat_template is not None
        return replace(
            example,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            apply_chat_template=partial(example.apply_chat_template, chat_template=template),
            chat_template=template,
            concatenates_arguments=has_argument_text,
            vocab_size=tokenizer.get_vocab_size(),
        )

    return make


def published(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def end_of(text: TextProcessor, formats: MessageFormats | None = None) -> str | None:
    found = template_end(text, formats or resolve_formats(text.chat_template, ServerBoot()))
    return None if found is None else text.vocabulary.shown(found)


def call(place: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": json.dumps({"place": place})}
    return {"id": f"call_{place}", "type": "function", "function": function}


def turns(family: Family) -> list[dict[str, Any]]:
    """Turns of an assistant with every combination of parts that the template renders."""
    calls = [call(FIRST), call(SECOND)][: family.calls]
    found: list[dict[str, Any]] = [{"content": CONTENT}]
    if calls:
        found += [{"tool_calls": calls}, {"content": CONTENT, "tool_calls": calls}]
        found += [{"reasoning_content": THOUGHT, "tool_calls": calls}]
    return [{"role": "assistant", "content": ""} | turn for turn in found]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_published_template_ends_answers_where_it_must(
    name: str, with_template: Callable[..., TextProcessor]
) -> None:
    """At the end of a turn, and not in calls, thoughts or between calls."""
    family = FAMILIES[name]
    text = with_template(published(name), family.has_argument_text)
    assert end_of(text) == family.end
    end = text.tokenizer.token_to_id(family.end) if family.end else None
    function = {"name": "get_weather", "description": "d", "parameters": {"type": "object"}}
    for turn in turns(family):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "?"}, turn],
            "add_generation_prompt": False,
            "tools": [{"type": "function", "function": function}] if "tool_calls" in turn else None,
        }
        rendered = render_conversation(ChatBody.model_validate(body), text)
        places = [rendered.rfind(part) for part in (THOUGHT, CONTENT, FIRST, SECOND)]
        found = [place for place in places if place >= 0]
        assert found
        assert end not in text.encode(rendered[min(found) : max(found)], add_special_tokens=False)


def test_harmonys_end_of_a_message_is_none_of_an_answer(
    with_template: Callable[..., TextProcessor],
) -> None:
    """Also where no parser of harmony is chosen."""
    assert end_of(with_template(published("gptoss")), MessageFormats()) is None


def test_a_marker_that_a_parser_reads_is_passed_over(
    with_template: Callable[..., TextProcessor],
) -> None:
    text = with_template(published("cohere2"))
    assert (
        end_of(text, resolve_formats("", ServerBoot(tool_parser="cohere_command3"))) == END_OF_TURN
    )
    assert end_of(text, MessageFormats()) == "<|END_RESPONSE|>"


TURNS = "{% for m in messages %}"
SMALL = {
    "white space before it": (TURNS + "{{ m.content }} \n<|im_end|>{% endfor %}", "<|im_end|>"),
    "the next role only": (
        TURNS + "{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}{{ m.content }}"
        "{% endfor %}",
        "<|user|>",
    ),
    "text before it": (TURNS + "{{ m.content }}.<|im_end|>{% endfor %}", None),
    "an added token that is not special": (TURNS + "{{ m.content }}<|plain|>{% endfor %}", None),
    "text only": (TURNS + "{{ m.role }}: {{ m.content }}\n{% endfor %}", None),
    "no content": (TURNS + "<|im_end|>{% endfor %}", None),
    "a refusal": ("{{ raise_exception('no') }}", None),
    "between thought and content": (
        TURNS + "{{ m.reasoning_content }}<|eom|>{{ m.content }}<|eom|>{% endfor %}", None
    ),
    "between calls": (
        TURNS + "{{ m.content }}<|eot|>{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments }}<|eot|>{% endfor %}{% endfor %}",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_only_a_special_token_right_after_content_ends_it(
    name: str, with_template: Callable[..., TextProcessor]
) -> None:
    template, end = SMALL[name]
    assert end_of(with_template(template)) == end


ADDED_TOKEN = {"__type": "AddedToken", "content": "<|im_start|>"}
NAMED: dict[str, tuple[dict[str, dict[str, Any]], dict[int, list[str]]]] = {
    "config.json alone": (
        {"config.json": {"eos_token_id": 7}},
        {7: ["config.json"], 2: ["chat template"]},
    ),
    "both configs, different ids": (
        {"config.json": {"eos_token_id": [7, 9]}, "generation_config.json": {"eos_token_id": 9}},
        {7: ["config.json"], 9: ["config.json", "generation_config.json"], 2: ["chat template"]},
    ),
    "the tokenizer alone": (
        {"tokenizer_config.json": {"eos_token": "<|im_end|>"}},
        {2: ["tokenizer_config.json", "chat template"]},
    ),
    "a token with its properties": (
        {"tokenizer_config.json": {"eos_token": ADDED_TOKEN}},
        {1: ["tokenizer_config.json"], 2: ["chat template"]},
    ),
    "two files of the tokenizer that differ": (
        {
            "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
            "special_tokens_map.json": {"eos_token": "<|im_start|>"},
        },
        {0: ["tokenizer_config.json"], 1: ["special_tokens_map.json"], 2: ["chat template"]},
    ),
    "the class of the tokenizer": (
        {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}},
        {0: ["default of the tokenizer's class"], 2: ["chat template"]},
    ),
    "an unknown token": (
        {"tokenizer_config.json": {"eos_token": "<|unknown|>"}},
        {2: ["chat template"]},
    ),
    "ids outside the vocabulary": (
        {"config.json": {"eos_token_id": -1}, "generation_config.json": {"eos_token_id": [1024]}},
        {2: ["chat template"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_stop_tokens_are_listed_with_all_their_sources(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits, expected = NAMED[name]
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        edit_json(tmp_path / file, {"eos_token_id": None, "eos_token": None})
    (tmp_path / "special_tokens_map.json").unlink()
    for file, edit in edits.items():
        edit_json(tmp_path / file, edit)
    text, ids = load_text_model(tmp_path), LlamaConfig.load(tmp_path).eos_token_ids
    formats = resolve_formats(text.chat_template, ServerBoot())
    found = read_stop_tokens(tmp_path, ids, text, formats)
    assert {each.token_id: list(each.sources) for each in found.tokens} == expected
    assert found.ids(in_chat=True) == {*expected}
    assert found.ids(in_chat=False) == {
        token_id for token_id, sources in expected.items() if sources != ["chat template"]
    }
    if name == "config.json alone":
        assert check([str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["stop_tokens"] == found.document()
        assert check([str(tmp_path)]) == 0
        assert "  stop token      2 <|im_end|> (chat template), in chat only\n" in (
            capsys.readouterr().out
        )


def edit_json(file: Path, edit: dict[str, Any]) -> None:
    """Merge keys into a JSON file; None removes one."""
    content = json.loads(file.read_text()) if file.exists() else {}
    kept = {key: value for key, value in (content | edit).items() if value is not None}
    file.write_text(json.dumps(kept))
