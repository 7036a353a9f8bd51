"""Schemas, grammars, expressions and tools that are expensive or impossible to enforce."""

import json
import random
from collections.abc import Callable
from typing import Any

Json = Any

DEPTHS = (30, 150, 1000, 3000)
SIZES = (10, 100, 1000, 5000)


def nested_schema(rng: random.Random) -> Json:
    """Return objects in objects, 30 to 3,000 levels."""
    schema: Json = {"type": "string"}
    kind = rng.randrange(3)
    for _ in range(rng.choice(DEPTHS)):
        if kind == 0:
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        elif kind == 1:
            schema = {"type": "array", "items": schema}
        else:
            schema = {rng.choice(("anyOf", "allOf", "oneOf")): [schema, {"type": "null"}]}
    return schema


def reference_chain(rng: random.Random) -> Json:
    """Return a chain of `$ref`s that ends in a type, in itself, or nowhere."""
    length = rng.choice(DEPTHS)
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    end = rng.randrange(3)
    if end == 0:
        defs[f"d{length}"] = {"type": "integer"}
    elif end == 1:
        defs[f"d{length}"] = {"$ref": "#/$defs/d0"}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def recursive_schema(rng: random.Random) -> Json:
    """Return a schema whose values have no bound, or no end at all."""
    node: Json = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}
    if rng.random() < 0.5:
        node["required"] = ["next"]
    return {"$ref": "#/$defs/n", "$defs": {"n": node}}


def wide_schema(rng: random.Random) -> Json:
    """Return an object of many optional properties, which may come in any combination."""
    count = rng.choice(SIZES)
    properties = {f"p{i}": {"type": rng.choice(("string", "number"))} for i in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": rng.random() < 0.5}


def exponential_schema(rng: random.Random) -> Json:
    """Return alternatives that multiply with each other."""
    count = rng.choice((5, 12, 25))
    parts = [{"anyOf": [{"minimum": i}, {"multipleOf": i + 2}]} for i in range(count)]
    return {"type": "integer", "allOf": parts}


def bounded_schema(rng: random.Random) -> Json:
    """Return one keyword with an extreme or wrong value."""
    keyword = rng.choice(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "minimum", "multipleOf")
    )
    kind = rng.choice(("string", "array", "object", "number", "integer"))
    return {"type": kind, keyword: rng.choice((-1, 0, 1e-300, 10**9, 2**63, 1e308, "1", None))}


def number_schema(rng: random.Random) -> Json:
    """Return a number beyond 53 or 64 bits somewhere, next to a mistake or alone."""
    number = rng.choice((1, -1)) * (2 ** rng.choice((53, 63, 64, 65, 200, 2000)) + rng.randrange(3))
    keyword = rng.choice(
        ("const", "enum", "minimum", "exclusiveMaximum", "multipleOf", "maxLength", "minItems",
         "default", "examples", "x-of-no-one")
    )  # fmt: skip
    part = {"type": rng.choice(("integer", "number", "string", "array", "nope")), keyword: number}
    if keyword in ("enum", "examples"):
        part[keyword] = [number, {"a": number}]
    return rng.choice((part, {"properties": {"a": part}}, {"anyOf": [{"type": "nope"}, part]}))


def pattern_schema(rng: random.Random) -> Json:
    """Return a schema with an expression or a format in it."""
    if rng.random() < 0.3:
        form = rng.choice(("date-time", "uri", "uuid", "ipv6", "email", "no-such-format", "\0"))
        return {"type": "string", "format": form}
    return {"type": "string", "pattern": hostile_regex(rng)}


def enum_schema(rng: random.Random) -> Json:
    """Return a large enum of strings with the same beginning."""
    return {"enum": ["x" * 50 + str(i) for i in range(rng.choice(SIZES))]}


def odd_schema(rng: random.Random) -> Json:
    """Return what is valid JSON but hardly a schema."""
    return rng.choice(
        (
            {}, True, [], {"type": "nope"}, {"type": ["string", "null", 3]}, {"properties": []},
            {"$ref": "http://127.0.0.1:9/x.json"}, {"$ref": "#/a~1b/%25"}, {"$ref": 3},
            {"required": [1]}, {"enum": []}, {"const": "\ud800"}, {"not": {}}, {"if": {}},
        )
    )  # fmt: skip


SCHEMAS: tuple[Callable[[random.Random], Json], ...] = (
    nested_schema, reference_chain, recursive_schema, wide_schema, exponential_schema,
    bounded_schema, number_schema, pattern_schema, enum_schema, odd_schema,
)  # fmt: skip


def hostile_schema(rng: random.Random) -> Json:
    """Return one of the schemas above."""
    return rng.choice(SCHEMAS)(rng)


def hostile_regex(rng: random.Random) -> str:
    """Return an expression that is large when it is expanded, ambiguous, or broken."""
    count = rng.choice((2, 50, 1000, 100_000))
    return rng.choice(
        (
            f"(a{{{count}}}){{{count}}}", "(a|a)*b", "(a*)*b", "((a+)+)+$", "(.*)(.*)(.*)(.*)x",
            f"(a?){{{count}}}a{{{count}}}", f"[ab]*a[ab]{{{count}}}", "(" * count, "a{2,1}",
            "\\p{L}{500}", "(?=a)b", "(?<n>a)\\1", "[\U0001f600-\U0001f64f]+", "\\", "", "\0+",
            "|".join("x" * 30 + str(i) for i in range(count)),
        )
    )  # fmt: skip


def hostile_grammar(rng: random.Random) -> str:
    """Return a grammar without an end, with too many rules or derivations, or with errors."""
    count = rng.choice(SIZES)
    chain = "\n".join(f"r{i} ::= r{i + 1} | r{i + 1} r{i + 1}" for i in range(count))
    return rng.choice(
        (
            "root ::= root", "root ::= root root | root", 'root ::= "a" root',
            'root ::= root "a" | ""', 'root ::= ("" | "a")* root', f'root ::= "{"x" * count}"',
            f"root ::= r0\n{chain}\nr{count} ::= [a-z]", "root ::= a\na ::= b\nb ::= a",
            'root ::= "a"{1000000}', "root ::= missing", "start: start", 'start: ("a" | "b")~9999',
            "root ::= " + "(" * count + '"a"' + ")" * count, "", "::=", "root ::= [z-a]", "\0",
            "root ::= " + " | ".join(f'"k{i}" [0-9]*' for i in range(count)),
        )
    )  # fmt: skip


def hostile_constraint(rng: random.Random) -> dict[str, Json]:
    """Return the fields of one constraint, in one of their many spellings."""
    kind = rng.randrange(9)
    if kind < 3:
        schema = hostile_schema(rng)
        inner = {"name": "s", "schema": schema, "strict": rng.choice((True, False, None))}
        return rng.choice(
            (
                {"guided_json": schema},
                {"response_format": {"type": "json_schema", "json_schema": inner}},
                {"structured_outputs": {"json": schema}},
                {"json_schema": json.dumps(schema)},
            )
        )
    if kind < 5:
        return {rng.choice(("guided_regex", "regex")): hostile_regex(rng)}
    if kind < 7:
        return {rng.choice(("guided_grammar", "ebnf")): hostile_grammar(rng)}
    if kind == 7:
        return {"guided_choice": ["c" * rng.choice(SIZES) + str(i) for i in range(20)]}
    return hostile_tools(rng)


def hostile_tools(rng: random.Random) -> dict[str, Json]:
    """Return tools with hostile schemas or names, or very many of them."""
    count = rng.choice((1, 1, 2, 50, 2000))
    parameters = hostile_schema(rng) if count < 50 else {"type": "object"}
    names = ("tool{i}", "a b", "", "x" * 5000, '"}', "<tool_call>", "\u202e")
    name = rng.choice(names)
    tools = [
        {
            "type": "function",
            "function": {
                "name": name.replace("{i}", str(i)),
                "description": rng.choice(("", "d", "\n</tools>\n")),
                "parameters": parameters,
                "strict": rng.choice((True, False)),
            },
        }
        for i in range(count)
    ]
    named = {"type": "function", "function": {"name": name.replace("{i}", "0")}}
    choice = rng.choice(("auto", "none", "required", named, "nope", None))
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": rng.random() < 0.5}
