"""What is refused, and whether the message leads to the mistake."""

import json
from collections.abc import Callable

import pytest

from specdecode_engine.grammar import Grammar, GrammarCompiler, GrammarRefused, TokenBytes
from specdecode_engine.grammar.json_schema import OPTIONS, find_fault, with_defaults


def nest(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + "true" + "}}" * depth


REFUSED = [
    ("regex", "a(b", "unclosed group"),
    ("regex", r"a\bc", "lookarounds not supported"),
    ("regex", "(" * 400 + ")" * 400, "nest"),
    ("ebnf", "root ::= foo", "line 1, column 10: the rule `foo` is not defined"),
    ("ebnf", 'other ::= "a"', "line 1, column 1: the grammar has no rule `root`"),
    ("ebnf", "start: foo", 'line 1, column 8: unknown name: "foo"'),
    ("ebnf", 'start: "a', "lexer error"),
    ("ebnf", "root ::= " + "(" * 4000, "line 1, column 310: brackets nest deeper"),
    ("ebnf", "start: " + "(" * 4000, "nests 4001 levels deep"),
    ("json_schema", "{", "not valid JSON: .* line 1 column 2"),
    ("json_schema", "[1]", "a schema is a JSON object"),
    ("json_schema", '{"type": "objct"}', r"at \$: Invalid type: objct"),
    ("json_schema", '{"$ref": "#/$defs/none"}', r"at \$: .*does not exist"),
    ("json_schema", '{"$ref": "#"}', "nothing matches it"),
    ("json_schema", '{"type": "string", "pattern": "(?<=a)b"}', "look-around"),
    (
        "json_schema",
        '{"if": {"multipleOf": 2}, "then": {}}',
        r'at \$: Unimplemented .*"then"\]; remove them',
    ),
    (
        "json_schema",
        '{"oneOf": [{"type": "integer"}, {"type": "number"}]}',
        r'oneOf is not supported; write anyOf, or add "x-guidance"',
    ),
    ("json_schema", nest(90), "recursion limit"),
    ("json_schema", '{"a": ' * 5000 + "1" + "}" * 5000, "nested too deeply|not valid JSON"),
    ("json_schema", " " * 300_000, "300000 characters; at most 262144"),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_followed_is_refused_with_the_reason(
    compile_text: Callable[..., Grammar], kind: str, text: str, message: str
) -> None:
    with pytest.raises(GrammarRefused, match=message) as refusal:
        compile_text(kind, text)
    assert len(str(refusal.value)) < 1500
    assert "llguidance" not in str(refusal.value)


def test_a_mistake_deep_in_a_schema_is_named_by_its_place(
    compile_text: Callable[..., Grammar],
) -> None:
    wrong = {
        "type": "object",
        "properties": {"x": {"anyOf": [{"type": "null"}, {"type": "strin"}]}},
    }
    schema = {"properties": {"ok": {"type": "null"}, "list": {"type": "array", "items": wrong}}}
    with pytest.raises(
        GrammarRefused, match=r"at \$.properties.list.items.properties.x.anyOf\[1\]: "
    ):
        compile_text("json_schema", json.dumps(schema))
    shared = {"$defs": {"bad": {"type": 5}}, "anyOf": [{"$ref": "#/$defs/bad"}]}
    with pytest.raises(GrammarRefused, match=r"at \$.\$defs.bad: type must be"):
        compile_text("json_schema", json.dumps(shared))


def test_the_search_for_a_mistake_is_bounded() -> None:
    asked = 0

    def refuse(schema: object) -> str:
        nonlocal asked
        asked += 1
        return "wrong everywhere" if asked == 1 else f"another reason {asked}"

    schema = {"properties": {f"p{n}": {"type": "string"} for n in range(10_000)}}
    assert find_fault(schema, refuse) == ("$", "wrong everywhere")
    assert asked < 1000


def test_only_a_strict_schema_is_refused_for_what_cannot_be_enforced(
    compile_text: Callable[..., Grammar],
) -> None:
    text = '{"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}'
    with pytest.raises(GrammarRefused, match=r'at \$.properties.a: .*"uniqueItems"'):
        compile_text("json_schema", text)
    assert compile_text("json_schema", text, False).source.is_strict is False


def test_a_schema_keeps_its_own_options() -> None:
    given = {OPTIONS: {"whitespace_flexible": False, "lenient": True}, "type": "null"}
    assert with_defaults(given, True)[OPTIONS] == {"whitespace_flexible": False, "lenient": True}
    assert with_defaults({}, True)[OPTIONS]["lenient"] is False  # type: ignore[index]


def test_a_vocabulary_without_an_end_is_refused() -> None:
    with pytest.raises(GrammarRefused, match="eos_token_id"):
        GrammarCompiler(TokenBytes([b"a", b"b"], frozenset(), frozenset()))


def test_answers_of_one_grammar_do_not_disturb_each_other(
    compile_text: Callable[..., Grammar], allowed, spellings
) -> None:
    grammar = compile_text("regex", "(ab|ba)+")
    a, b = spellings.index(b"a"), spellings.index(b"b")
    first, second = grammar.follow(()), grammar.follow(())
    first.advance(a)
    assert allowed(second) == allowed(grammar.follow(()))
    second.advance(b)
    assert allowed(first) == {b}
