"""Values that a model writes as text become what the schema of the parameter permits."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.schema_types import ANY_TYPE, MAX_DEPTH, type_of, types_of
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.parsers.tool_grammar import MessageConstraint, ToolSchema, constrain
from tests.engine.serve.parsers.samples import join
from tests.engine.serve.parsers.test_tool_grammar import RandomModel

XML = "<function=f>\n<parameter=p>{}</parameter>\n</function>"
INVOKE = '<invoke name="f">\n<parameter name="p">{}</parameter>\n</invoke>'
CALLS = {
    "qwen3_coder": "<tool_call>\n" + XML.replace("{}", "\n{}\n") + "\n</tool_call>",
    "seed_oss": f"<seed:tool_call>\n{XML}\n</seed:tool_call>",
    "glm45": "<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "glm47": "<tool_call>f<arg_key>p</arg_key><arg_value>{}</arg_value></tool_call>",
    "minimax_m2": f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>",
}
STRING: Any = {"type": "string"}
NULL: Any = {"type": "null"}
OBJECT: Any = {"type": "object"}
DEFS: dict[str, Any] = {
    "S": STRING,
    "a/b": {"anyOf": [{"$ref": "#/$defs/S"}, NULL]},
    "tree": {"anyOf": [{"type": "array"}, {"$ref": "#/$defs/tree"}]},
    "loop": {"$ref": "#/$defs/loop"},
}  # fmt: skip


def parsed(name: str, parameter: Any, text: str) -> Any:
    schema = {"type": "object", "properties": {"p": parameter}, "$defs": DEFS}
    parser = TOOL_FORMATS[name].make_parser(ParserContext(parameters={"f": schema}))
    deltas = [*parser.push(CALLS[name].replace("{}", text)), *parser.flush()]
    message = join(deltas)
    assert message.content == ""
    ((_, arguments),) = message.calls
    return json.loads(arguments)["p"]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ({"anyOf": [STRING, NULL]}, "12345", "12345"),
        ({"anyOf": [STRING, NULL]}, "true", "true"),
        ({"anyOf": [STRING, NULL]}, "True", "True"),
        ({"anyOf": [STRING, NULL]}, "null", None),
        ({"anyOf": [STRING, NULL]}, "None", None),
        ({"anyOf": [STRING, NULL]}, '"12"', "12"),
        ({"oneOf": [STRING, OBJECT]}, "12345", "12345"),
        ({"oneOf": [STRING, OBJECT]}, '{"a": 1}', {"a": 1}),
        ({"oneOf": [STRING, OBJECT]}, "{'a': 1}", "{'a': 1}"),
        ({"anyOf": [{"type": "integer"}, NULL]}, "3", 3),
        ({"allOf": [STRING]}, "12345", "12345"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "5", 5),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["True", "False"]}, "True", "True"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "5"}, "5", "5"),
        ({"const": False}, "False", False),
        ({"$ref": "#/$defs/S"}, "12345", "12345"),
        ({"$ref": "#/$defs/a~1b"}, "7", "7"),
        ({"$ref": "#/%24defs/a~1b"}, "null", None),
        ({"$ref": "#/properties/p/anyOf/1", "anyOf": [NULL, STRING]}, "7", "7"),
        ({"$ref": "#/$defs/tree"}, "[[], []]", [[], []]),
        ({"$ref": "#/$defs/missing"}, "7", 7),
        ({"type": ["string", "null"]}, "7", "7"),
        (STRING, '"quoted"', '"quoted"'),
        (OBJECT, "{'a': 1}", {"a": 1}),
        (OBJECT, "{'a': 'it\"s', 'b': (1, 2), 3: None}", {"a": 'it"s', "b": [1, 2], "3": None}),
        (OBJECT, "{'a': 1", "{'a': 1"),
        ({"anyOf": [OBJECT, NULL]}, "{'a': True}", {"a": True}),
        ({"type": "array"}, "['x', (1,), ()]", ["x", [1], []]),
        ({"type": "array"}, "'x'", "'x'"),
        ({"type": "integer"}, "0x1F", 31),
        ({"type": "integer"}, "1_000", 1000),
        ({"type": "integer"}, "many", "many"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "TRUE", "TRUE"),
        ({}, "12", 12),
        ({}, "None", None),
        ({}, "{'a': 1}", "{'a': 1}"),
        (True, "12", 12),
    ],
)  # fmt: skip
def test_text_becomes_what_the_schema_permits(name, parameter, text, value) -> None:
    found = parsed(name, parameter, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("[f(o={'k': (1, 2)}, i=0x1F)]", '{"o": {"k": [1, 2]}, "i": 31}'),
        ("[f(a=(), b=(1,), c=('x'))]", '{"a": [], "b": [1], "c": "x"}'),
        ("[f(a=((1, 2), [3]), b=-0o17)]", '{"a": [[1, 2], [3]], "b": -15}'),
        ("[f(a={1: 'x', True: 0b11})]", '{"a": {"1": "x", "true": 3}}'),
    ],
)
def test_python_literals_become_json_when_a_call_has_them(text, arguments) -> None:
    for pieces in ([text], text):
        parser = TOOL_FORMATS["pythonic"].make_parser(ParserContext(parameters={"f": {}}))
        deltas = [delta for piece in pieces for delta in parser.push(piece)]
        ((_, found),) = join([*deltas, *parser.flush()]).calls
        assert found == arguments


LEAVES = st.one_of(
    st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"]).map(
        lambda name: {"type": name}
    ),
    st.lists(st.sampled_from(["a", 1, 1.5, True, None]), min_size=1).map(lambda x: {"enum": x}),
    st.sampled_from(["5", 5, None, False]).map(lambda value: {"const": value}),
    st.sampled_from([{}, True, False, {"$ref": "#/$defs/S"}, {"$ref": "#/$defs/a~1b"}]),
    st.just({"type": ["string", "array"]}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda keyword, parts: {keyword: parts},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
VALUES: list[Any] = ["a", "5", 1, 5, 1.5, True, False, None, [], {}]


@settings(deadline=None, max_examples=60)
@given(schema=SCHEMAS)
def test_no_type_is_missing_when_a_schema_permits_a_value(schema) -> None:
    root = {"properties": {"p": schema}, "$defs": DEFS}
    types = types_of(root, "p")
    validator = jsonschema.Draft202012Validator(root)
    for value in VALUES:
        assert type_of(value) in types or not validator.is_valid({"p": value})


def test_reading_types_ends_when_schemas_refer_to_themselves() -> None:
    deep: Any = STRING
    for _ in range(MAX_DEPTH + 1):
        deep = {"anyOf": [deep]}
    assert types_of({"properties": {"p": deep}}, "p") == ANY_TYPE
    chain = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(15)}
    root = {"properties": {"p": {"$ref": "#/$defs/d0"}}, "$defs": chain | {"d15": STRING}}
    assert types_of(root, "p") == {"string"}
    assert not types_of({"properties": {"p": {"$ref": "#/$defs/loop"}}, "$defs": DEFS}, "p")


STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "zip": {"anyOf": [{"type": "string", "maxLength": 3}, NULL]},
        "choice": {"enum": ["1", "true"]},
        "five": {"const": "5"},
        "named": {"$ref": "#/$defs/S"},
        "either": {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]},
    },
    "required": ["zip", "choice", "five", "named", "either"],
    "additionalProperties": False,
    "$defs": {"S": {"type": "string", "maxLength": 4}},
}


@pytest.mark.parametrize("name", CALLS)
def test_strict_arguments_are_valid_when_parameters_have_no_type(name) -> None:
    model = RandomModel(name)
    tools = (ToolSchema("f", STRICT, True, "tools[0].function.parameters"),)
    wanted = MessageConstraint(name, None, tools, is_required=True, is_parallel=False)
    source = constrain(wanted, model.special_ids)
    assert source is not None
    texts = [text for seed in range(4) if (text := model.write(source, seed)) is not None]
    assert texts
    for text in texts:
        parser = TOOL_FORMATS[name].make_parser(ParserContext(parameters={"f": STRICT}))
        ((_, arguments),) = join([*parser.push(text), *parser.flush()]).calls
        jsonschema.validate(json.loads(arguments), STRICT)
