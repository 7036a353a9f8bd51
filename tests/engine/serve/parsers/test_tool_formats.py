"""What each format's parser finds in whole texts, and which format belongs to a template."""

import json
from typing import get_args

import pytest

from specdecode_api.parsers import ToolFormat
from specdecode_engine.serve.parsers.message import ToolCallDelta
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS, detect_tool_format
from tests.engine.serve.parsers.samples import CASES, FIXTURES, ParsedText, join, make_parser, parse

TEMPLATES = {
    "apertus": "'<|tools_prefix|>[' + calls + ']<|tools_suffix|>'",
    "cohere_command3": "'<|START_ACTION|>[' + calls + ']<|END_ACTION|>'",
    "cohere_command4": "'<|START_TEXT|>' + content … '<|START_ACTION|>['",
    "deepseek_v3": "'<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\\n```json\\n'",
    "deepseek_v31": "'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments",
    "deepseek_v32": "'<' + '｜DSML｜' + 'function_calls>' … 'parameter name='",
    "deepseek_v4": "'<' + '｜DSML｜' + 'tool_calls>' … 'parameter name='",
    "functiongemma": "'<start_function_call>call:' + name + '{'",
    "gemma4": "'<|tool_call>call:' + name + '{'",
    "glm45": "'<tool_call>' + name + '\\n<arg_key>' + key + '</arg_key>'",
    "glm47": "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>",
    "granite": "<|start_of_role|>… respond only with <|tool_call|> followed by a JSON list",
    "hermes": """<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <object>}""",
    "hunyuan_a13b": "'<tool_calls>[' + calls + ']</tool_calls>'",
    "hy_v3": "'<tool_calls' ~ s ~ '>\n<tool_call' ~ s ~ '>' … '<tool_sep' … '<arg_key'",
    "hy_v4": "'<tool_calls{}><tool_call{}>'.format(s, s) … '<arg_key{}>'.format(s)",
    "internlm": "'<|action_start|><|plugin|>\n' + call + '<|action_end|>'",
    "kimi_k2": "'<|tool_call_begin|>' + id + '<|tool_call_argument_begin|>' + arguments",
    "lfm2": "'<|tool_call_start|>[' + calls + ']<|tool_call_end|>'",
    "llama3_json": """<|start_header_id|>… '{"name": "' + name + '", "parameters": '""",
    "minimax_m2": "<minimax:tool_call>\n<invoke name=",
    "mistral": "'[TOOL_CALLS] [' + calls + ']'",
    "olmo3": "'<function_calls>' + calls + '</function_calls>'",
    "openai": "'<|start|>assistant<|channel|>final<|message|>' + content",
    "phi4_mini_json": "'<|tool|>' + tools + '<|/tool|>'",
    "qwen3_coder": "'<tool_call>\n<function=' + name + '>\n<parameter=' + key + '>\n'",
    "seed_oss": "<seed:tool_call>\n<function=name>\n<parameter=key>value</parameter>",
    "pythonic": "<|start_header_id|>… in the format of [func_name1(params_name1=params_value1)]",
}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_parser_finds_content_reasoning_and_calls_in_a_text(name, case) -> None:
    calls = tuple((call["name"], call["arguments"]) for call in case["calls"])
    expected = ParsedText(case["content"], case["reasoning"], calls)
    assert parse(name, [case["text"]]) == expected
    assert parse(name, case["text"]) == expected


def test_every_format_of_the_contract_has_a_parser_a_fixture_and_a_template() -> None:
    names = set(get_args(ToolFormat))
    assert set(TOOL_FORMATS) == names == set(FIXTURES) == set(TEMPLATES)
    assert all(fixture["origin"] and fixture["licence"] for fixture in FIXTURES.values())


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_format_is_detected_from_the_template(name) -> None:
    assert detect_tool_format(TEMPLATES[name]) == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<|start_of_role|>… respond with <tool_call> followed by a JSON list of tools", "granite"),
        ('<|start_of_role|>… <tool_call>\n{"name": …, "arguments": …}\n</tool_call>', "hermes"),
        ("<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n…</tool_calls>", "hy_v3"),
        ("<tool_calls><tool_call>f<arg_key>a</arg_key><arg_value>1…</tool_calls>", "hy_v4"),
        ("<|start_of_role|>… <tool_call>\n<function=f>\n<parameter=a>\n", "qwen3_coder"),
        ('<response>… <tool_call>\n{"name": …, "arguments": …}\n</tool_call>', "hermes"),
    ],
)
def test_formats_that_families_share_are_detected(template: str, name: str) -> None:
    """Granite 3.1 and 4, tags without a suffix of Hy3 and Hy4, Granite 4.2, ERNIE 4.5."""
    assert detect_tool_format(template) == name


def test_templates_without_a_known_format_have_none() -> None:
    assert detect_tool_format("{{ message.content }}") is None
    assert detect_tool_format('<tool_call>\n<function=name>{"arguments": 1}</function>') is None
    assert detect_tool_format("<other:tool_call>\n<function=name>\n<parameter=x>") is None


def test_arguments_arrive_while_the_model_writes_them() -> None:
    parser = make_parser("hermes")
    begun = join(parser.push('<tool_call>\n{"name": "search", "arguments": {"query": "long'))
    assert begun.calls == (("search", '{"query": "long'),)
    more = parser.push(" text")
    assert all(isinstance(delta, ToolCallDelta) for delta in more)
    assert "".join(delta.arguments for delta in more if isinstance(delta, ToolCallDelta)) == " text"


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
def test_a_name_with_a_lone_surrogate_is_content(name) -> None:
    begin = {"hermes": "<tool_call>", "llama3_json": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}
    text = begin[name] + r'{"name": "a\ud800", "arguments": {}}'
    assert parse(name, [text]) == ParsedText(text, "", ())


def test_decoded_text_never_has_lone_surrogates() -> None:
    text = r'<tool_call>{"name": "now", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>'
    (_, arguments), *_ = parse("hermes", [text]).calls
    assert arguments.encode()
    assert json.loads(arguments) == {"a": "�"}
    (_, arguments), *_ = parse("pythonic", [r"[now(a='\ud83d\ude00', b='\ud800')]"]).calls
    assert arguments.encode()
    assert json.loads(arguments)["a"] == "😀"


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    deep = "[" * 20_000
    for name, begin in (
        ("hermes", '<tool_call>{"name": "now", "arguments": '),
        ("pythonic", "[now(a="),
    ):
        found = parse(name, [begin + deep])
        assert [call for call, _ in found.calls] == ["now"]
