"""Grammars nested so deeply that the library would exhaust its stack and end the process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdecode_engine.grammar.nesting import MAX_DEPTH, lark_depth, schema_depth

CRASH_PROOF = """
import asyncio, json, sys
from specdecode_engine.grammar import GrammarKind, GrammarSource, TokenBytes
from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.text.grammars import Grammars

async def main():
    spellings = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    grammars = Grammars()
    grammars.prepare(TokenBytes(spellings, frozenset({256}), frozenset({256})))
    for kind, text in json.load(sys.stdin):
        try:
            await grammars.translate("guided", GrammarSource(GrammarKind(kind), text))
            print("compiled", flush=True)
        except HttpError as error:
            print(error.status, error, flush=True)

asyncio.run(main())
"""


def chain(links: int, link: str, end: str = '{"type": "null"}') -> str:
    """A schema whose definitions refer to the next; `link` has REF where that goes."""
    parts = [
        f'"d{i}": ' + link.replace("REF", f'{{"$ref": "#/$defs/d{i + 1}"}}') for i in range(links)
    ]
    return f'{{"$defs": {{{", ".join([*parts, f""""d{links}": {end}"""])}}}, "$ref": "#/$defs/d0"}}'


ARRAYS = '{"type": "array", "items": REF}'
OBJECTS = '{"type": "object", "properties": {"a": REF}, "required": ["a"]}'
NESTED = '{"items": ' * 30 + "REF" + "}" * 30
RULES = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000)) + 'r5000: "a"\n'
TERMINALS = RULES.replace("r", "R").replace("staRt", "start")
BRACKETS = (
    "start: r0\n"
    + "".join(f"r{i}: {'(' * 25}r{i + 1}{')' * 25}\n" for i in range(400))
    + 'r400: "a"\n'
)
GBNF = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(2100)) + 'r2100 ::= "a"\n'


DEEP = [
    ("json_schema", chain(1000, "REF"), "compiled"),
    ("json_schema", chain(1000, ARRAYS), "400 guided: it nests 2003 levels deep"),
    ("json_schema", chain(1000, OBJECTS), "400 guided: it nests 3003 levels deep"),
    ("json_schema", chain(600, OBJECTS), "compiled"),
    ("json_schema", chain(60, NESTED), "compiled"),
    ("json_schema", chain(200, NESTED), "400 guided: it nests 6203 levels deep"),
    ("json_schema", chain(4000, "REF"), "400 guided: it nests 4003 levels deep"),
    ("ebnf", "start: %json " + chain(4000, "REF"), "400 guided: it nests 4004 levels deep"),
    ("ebnf", RULES, "400 guided: it nests 5002 levels deep"),
    ("ebnf", TERMINALS, "400 guided: it nests 5002 levels deep"),
    ("ebnf", BRACKETS, "400 guided: it nests 10402 levels deep"),
    ("ebnf", GBNF, "400 guided: it nests 2102 levels deep"),
    ("regex", "a+", "compiled"),
]


def test_no_grammar_ends_the_process_however_deep_its_references() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH_PROOF],
        input=json.dumps([(kind, text) for kind, text, _ in DEEP]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    for (kind, _, expected), answer in zip(DEEP, answers, strict=True):
        assert answer.startswith(expected), (kind, answer)
        if answer.startswith("400"):
            assert f"at most {MAX_DEPTH} are allowed; shorten the chain" in answer


def test_the_depth_of_a_schema_counts_objects_and_lists_and_follows_references() -> None:
    assert schema_depth({"type": "null"}) == 1
    assert schema_depth({"anyOf": [{"items": {"type": "null"}}]}) == 4
    assert schema_depth(json.loads(chain(100, "REF"))) == 103
    twice = {"properties": {"a": {"items": {}}, "b": {"$ref": "#/properties/a"}}}
    assert schema_depth(twice) == 5
    escaped = {"$defs": {"a/b c": {"items": {"items": {}}}}, "$ref": "#/$defs/a~1b%20c"}
    assert schema_depth(escaped) == 5


def test_a_recursive_schema_is_counted_once_around() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert schema_depth(tree) == 4  # the root, `properties` and both references


@pytest.mark.parametrize("base", ["$id", "id", "$anchor", "$dynamicAnchor"])
def test_references_past_pointers_count_every_definition(base: str) -> None:
    schema = json.loads(chain(100, '{"items": REF}'))
    for number in range(100):
        schema["$defs"][f"d{number}"] |= {base: f"n{number}", "items": {"$ref": f"n{number + 1}"}}
    assert schema_depth(schema) >= 203


def test_the_depth_of_rules_counts_brackets_and_schemas_but_no_strings_and_comments() -> None:
    text = (
        'start: a "x: (((" /\\/:((b/ // c: (((\n'
        "a[capture]: ((B))\n"
        '!B.1: "b"\n'
        "b: a\n"
        '  | %json {"items": {"items": {}}}\n'
    )
    assert lark_depth(text) == 4 + 3 + 1  # b with its schema, a with its brackets, B
    assert lark_depth("start: a\na: b\nb: a | c\nc: /x/\n") == 4


def test_a_schema_with_long_names_is_measured_without_copying_them() -> None:
    schema = json.loads('{"' + "k" * 100_000 + '": [' + ",".join(["[]"] * 20_000) + "]}")
    assert schema_depth(schema) == 3


def test_real_schemas_are_far_from_the_limit() -> None:
    for path in Path(__file__).parents[3].joinpath("crds").glob("*.json"):
        assert schema_depth(json.loads(path.read_text())) < MAX_DEPTH // 10
