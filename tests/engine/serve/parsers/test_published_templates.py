"""What chat templates of published models make of a call is what their parsers read.

The templates are those of the models' repositories on the Hub, as the package trl contains them.
"""

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.openai.chat_prompt import read_chat_prompt
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.parsers.formats import MessageFormats, resolve_formats
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.text.loading import load_text_model
from specdecode_engine.serve.text.tokenizer import TextProcessor
from tests.engine.serve.parsers.samples import ParsedText, join

EXAMPLE = Path(__file__).parents[4] / "examples" / "models" / "target"
SPEC = find_spec("trl")
assert SPEC is not None
assert SPEC.origin is not None
TEMPLATES = Path(SPEC.origin).parent / "chat_templates"

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "tags": {"type": "array"},
        "filters": {"type": "object"},
        "exact": {"type": "boolean"},
        "limit": {"type": "integer"},
        "score": {"type": ["number", "null"]},
    },
}
PARAMETERS: dict[str, Any] = {"search": SEARCH, "now": {"type": "object", "properties": {}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
    for name, schema in PARAMETERS.items()
]
ARGUMENTS = {
    "query": 'a "b" <c>\n{ü}',
    "tags": ["x", {"y": [1, 2.5]}],
    "filters": {"from": "1", "to": None},
    "exact": True,
    "limit": 3,
    "score": None,
}


@dataclass(frozen=True)
class Family:
    """A published template: the formats it shows, and what surrounds a message of the model.

    `has_content` is whether the template shows content next to calls.
    """

    tools: str | None
    reasoning: str | None
    begin: str
    end: str
    has_content: bool = True
    calls: int = 2


CHATML = ("<|im_start|>assistant\n", "<|im_end|>\n")
LLAMA = ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>")
QWEN = Family("hermes", "qwen3", *CHATML)
QWEN_WITHOUT_REASONING = Family("hermes", None, *CHATML)
QWEN_XML = Family("qwen3_coder", "qwen3", *CHATML)
GEMMA = Family("gemma4", "gemma4", "<|turn>model\n", "<|tool_response>")
LFM = Family("lfm2", "qwen3", *CHATML)
FAMILIES = {
    "deepseekv3": Family(
        "deepseek_v3", "deepseek_r1", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
    ),
    "diffusion_gemma": GEMMA,
    "gemma4": GEMMA,
    "gemma4_v2": Family("gemma4", "gemma4", "<|turn>model\n", "<turn|>\n"),
    "gemma4_v3": GEMMA,
    "gemma4_v4": GEMMA,
    "gemma4_v5": GEMMA,
    "glm4moe": Family("glm45", "glm45", "<|assistant|>", ""),
    "gptoss": Family(
        "openai", "openai_gptoss", "<|start|>user<|message|>?<|end|><|start|>assistant", "<|call|>",
        has_content=False, calls=1,
    ),
    "lfm2_2_5": LFM,
    "lfm2_2_5_v2": LFM,
    "lfm2_v2": Family("lfm2", None, *CHATML),
    "llama3_1": Family("llama3_json", None, *LLAMA, has_content=False, calls=1),
    "llama3_2": Family("llama3_json", None, *LLAMA, has_content=False, calls=1),
    "nemotron_3_5_lightning": QWEN_XML,
    "nemotron_3_nano": QWEN_XML,
    "nemotron_3_super": QWEN_XML,
    "nemotron_3_ultra": QWEN_XML,
    "qwen2_5": QWEN_WITHOUT_REASONING,
    "qwen3": QWEN,
    "qwen3_5_nothink": QWEN_XML,
    "qwen3_5_think": QWEN_XML,
    "qwen3_6": QWEN_XML,
    "qwen3_8": QWEN_XML,
    "qwen3_instruct_2507": QWEN_WITHOUT_REASONING,
    "qwen3_vl": QWEN_WITHOUT_REASONING,
}  # fmt: skip
OTHERS = ("cohere2", "gemma3", "muse_glimmer", "phi3")


@dataclass(frozen=True)
class PublishedTemplate:
    """A family, its template as an engine loads it, and the formats that the engine chose."""

    family: Family
    text: TextProcessor
    formats: MessageFormats

    def render(self, *messages: dict[str, Any], **fields: Any) -> str:
        asked = {"role": "user", "content": "?"}
        body = {"messages": [asked, *messages], "tools": TOOLS} | fields
        return read_chat_prompt(ChatBody.model_validate(body), self.text, 100_000).text

    def output(self, message: dict[str, Any]) -> str:
        """Return what the model would have written for a message."""
        rendered = self.render(message, add_generation_prompt=False)
        output = rendered[rendered.rindex(self.family.begin) + len(self.family.begin) :]
        return output.removesuffix(self.family.end)

    def read(self, output: str) -> ParsedText:
        parser = self.formats.make_parser(ParserContext(parameters=PARAMETERS))
        deltas = [delta for char in output for delta in parser.push(char)]
        return join([*deltas, *parser.flush()])


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def published(request, tmp_path_factory) -> PublishedTemplate:
    template = (TEMPLATES / f"{request.param}.jinja").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    text = load_text_model(folder)
    assert text.chat_template == template
    return PublishedTemplate(FAMILIES[request.param], text, resolve_formats(template, ServerBoot()))


def call(name: str, arguments: object) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{name}", "type": "function", "function": function}


CALLS = [call("search", ARGUMENTS), call("now", {})]


def decoded(parsed: ParsedText) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in parsed.calls]


def test_the_formats_of_a_published_model_are_detected(published: PublishedTemplate) -> None:
    family = published.family
    names = {"tool_parser": family.tools or "none", "reasoning_parser": family.reasoning or "none"}
    assert published.formats == resolve_formats("", ServerBoot.model_validate(names))


@pytest.mark.parametrize("name", OTHERS)
def test_formats_without_a_parser_are_taken_for_none_of_the_others(name: str) -> None:
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    assert resolve_formats(template, ServerBoot()).tools is None


def test_a_template_that_shows_no_calls_has_the_format_of_its_family() -> None:
    template = (TEMPLATES / "lfm2.jinja").read_text(encoding="utf-8")
    formats = resolve_formats(template, ServerBoot())
    assert formats.tools is not None
    assert formats.tools.name == "lfm2"


def test_calls_as_the_template_shows_them_are_read(published: PublishedTemplate) -> None:
    calls = CALLS[: published.family.calls]
    parsed = published.read(published.output({"role": "assistant", "tool_calls": calls}))
    assert decoded(parsed) == [("search", ARGUMENTS), ("now", {})][: published.family.calls]
    assert parsed.content == ""
    assert parsed.reasoning == ""


def test_content_and_reasoning_next_to_calls_are_read(published: PublishedTemplate) -> None:
    family = published.family
    content = "I look it up." if family.has_content else ""
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": "Which tool?\n\nThe first.",
        "tool_calls": CALLS[:1],
    }
    output = published.output(message)
    parsed = published.read(output)
    assert decoded(parsed) == [("search", ARGUMENTS)]
    assert parsed.content == content
    assert parsed.reasoning == ("Which tool?\n\nThe first." if "Which tool?" in output else "")


def test_a_prompt_after_results_opens_reasoning_if_the_template_does(
    published: PublishedTemplate,
) -> None:
    result = {"role": "tool", "tool_call_id": "call_search", "content": "It is sunny."}
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    prompt = published.render({"role": "assistant", "tool_calls": CALLS[:1]}, result, **thinking)
    tags = published.formats.reasoning
    if tags is not None:
        assert tags.are_open(prompt) is (prompt.rfind(tags.start) > prompt.rfind(tags.end))


def test_a_conversation_with_results_of_calls_is_rendered(published: PublishedTemplate) -> None:
    result = {"role": "tool", "tool_call_id": "call_search", "content": "It is sunny."}
    rendered = published.render({"role": "assistant", "tool_calls": CALLS[:1]}, result)
    arguments = rendered.index("ü" if "ü" in rendered else "\\u00fc")
    assert arguments < rendered.index("It is sunny.")


@pytest.mark.parametrize("arguments", ["", "null", None, {}, "missing"])
def test_a_call_has_no_arguments_when_they_are_empty(published, arguments) -> None:
    function = {"name": "now", "arguments": arguments}
    if arguments == "missing":
        del function["arguments"]
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": each}]}
        for each in (function, function | {"arguments": "{}"})
    ]
    found, expected = (published.render(message) for message in messages)
    assert found == expected


@pytest.mark.parametrize("arguments", ['{"query": ', "Paris", "[1]"])
def test_earlier_calls_are_rendered_when_they_are_not_json(published, arguments) -> None:
    function = {"name": "search", "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "a", "content": "no such tool"}
    rendered = published.render({"role": "assistant", "tool_calls": [call]}, result)
    assert "no such tool" in rendered
    assert arguments in rendered or json.dumps(arguments)[1:-1] in rendered


def test_an_object_is_rendered_as_its_text_when_a_client_sends_one(published) -> None:
    text = json.dumps(ARGUMENTS, ensure_ascii=False)
    functions = [{"name": "search", "arguments": each} for each in (text, ARGUMENTS)]
    calls = [{"id": "a", "type": "function", "function": each} for each in functions]
    found = [published.render({"role": "assistant", "tool_calls": [each]}) for each in calls]
    assert found[0] == found[1]
