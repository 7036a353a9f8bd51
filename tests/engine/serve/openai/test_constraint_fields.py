"""Fields of a request that constrain its answer: several spellings of one constraint."""

import pytest

from specdecode_engine.grammar import GrammarKind, GrammarSource
from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.openai.constraints import ConstraintFields, read_constraint

LARK = "%llguidance {}\n\nstart: a\na[capture]: A\nA: /[0-9]+/\n"
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}}
SCHEMA_TEXT = '{"type":"object",\n"properties":{"a":{"const":1}}}'
STRICT = {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}
LENIENT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}

EQUAL = [
    ({"guided_grammar": LARK, "structured_outputs": {"grammar": LARK}}, GrammarKind.EBNF, True),
    ({"ebnf": LARK, "response_format": {"type": "ebnf", "ebnf": LARK}}, GrammarKind.EBNF, True),
    ({"guided_regex": "a", "regex": "a"}, GrammarKind.REGEX, True),
    ({"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}}, GrammarKind.CHOICE, True),
    ({"guided_json": SCHEMA, "json_schema": SCHEMA_TEXT}, GrammarKind.JSON_SCHEMA, True),
    ({"guided_json": SCHEMA, "response_format": LENIENT}, GrammarKind.JSON_SCHEMA, True),
    ({"response_format": LENIENT}, GrammarKind.JSON_SCHEMA, False),
    ({"response_format": STRICT, "json_schema": SCHEMA_TEXT}, GrammarKind.JSON_SCHEMA, True),
    (
        {
            "structured_outputs": {"json_object": True, "json": {"type": "object"}},
            "response_format": {"type": "json_object"},
        },
        GrammarKind.JSON_SCHEMA,
        True,
    ),
]
DIFFERENT = [
    ({"guided_regex": "a", "regex": "b"}, "regex", "guided_regex and regex both"),
    ({"guided_grammar": LARK, "guided_regex": LARK}, "guided_grammar", "guided_regex and guided_g"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "both"),
    ({"guided_json": {"const": 1}, "json_schema": '{"const": true}'}, "json_schema", "both"),
    ({"guided_json": "{", "json_schema": "[", "regex": None}, "json_schema", "both"),
]


@pytest.mark.parametrize(("fields", "kind", "is_strict"), EQUAL, ids=range(len(EQUAL)))
def test_one_constraint_in_several_fields_is_one(
    fields: dict[str, object], kind: GrammarKind, is_strict: bool
) -> None:
    found = read_constraint(ConstraintFields.model_validate(fields))
    assert found is not None
    assert isinstance(found[1], GrammarSource)
    assert (found[1].kind, found[1].is_strict) == (kind, is_strict)


@pytest.mark.parametrize(("fields", "param", "message"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_two_constraints_are_refused_by_name(
    fields: dict[str, object], param: str, message: str
) -> None:
    with pytest.raises(HttpError, match=message) as refused:
        read_constraint(ConstraintFields.model_validate(fields))
    assert refused.value.body["error"]["param"] == param  # type: ignore[index]
    assert refused.value.status == 400
