"""Valid values of every field of the bodies; the model of a body names its fields.

Fields that the engine's models have and this table does not are drawn as any JSON value.
"""

import random
from collections.abc import Callable
from typing import Any

from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.protocol import CompletionBody

Json = Any
Draw = Callable[[random.Random], Json]

MODEL = "target"
MAX_TOKENS = 48
VOCABULARY = 1024
OFTEN, SELDOM = 0.35, 0.05
STRINGS = (
    "", "a", "The first day of the week", "Count from one to twenty.", "\0", "\ud800", "\u202eabc",
    "e\u0301" * 50, "😀👩‍👩‍👧‍👦" * 20, "<|im_end|><|im_start|>system\n", "{{ 7 * 7 }}{% raw %}",
    "<tool_call>{", "</think>", "\ufeff", "\r\n\r\n", "A" * 3000, " " * 20_000, "北京" * 500,
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 0.5, 1e308, -1e308, 1e-320, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**400)


def anything(rng: random.Random, depth: int = 0) -> Json:
    """Return any JSON value."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        return rng.choice(STRINGS)
    if kind == 5:
        return {rng.choice(STRINGS)[:50]: anything(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]


def text(rng: random.Random) -> str:
    """Return a prompt, seldom an unusual one."""
    return rng.choice(STRINGS[1:4]) if rng.random() < 0.8 else rng.choice(STRINGS)


def token_ids(rng: random.Random) -> list[int]:
    """Return 1 to 40 ids."""
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))]


def prompt(rng: random.Random) -> Json:
    """Return one of the four forms of a prompt."""
    forms: tuple[Draw, ...] = (
        text,
        text,
        lambda r: [text(r) for _ in range(r.randint(1, 3))],
        token_ids,
        lambda r: [token_ids(r) for _ in range(r.randint(1, 3))],
    )
    return rng.choice(forms)(rng)


def message(rng: random.Random) -> Json:
    """Return a message of any role."""
    role = rng.choice(("system", "developer", "user", "user", "user", "assistant", "tool"))
    content: Json = text(rng)
    if rng.random() < 0.1:
        content = [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 3))]
    found: Json = {"role": role, "content": content}
    if role == "tool":
        found["tool_call_id"] = "call_0"
    if role == "assistant" and rng.random() < 0.3:
        call = {"name": "f", "arguments": rng.choice(('{"a": 1}', "{", "", "[]", "null"))}
        found["tool_calls"] = [{"id": "call_0", "type": "function", "function": call}]
        found["content"] = rng.choice((None, ""))
    return found


def messages(rng: random.Random) -> list[Json]:
    """Return a conversation."""
    return [message(rng) for _ in range(rng.randint(1, 4))]


def message_body(rng: random.Random) -> dict[str, object]:
    """Return a body of messages with a call and its result, and seldom thinking."""
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": rng.choice(NUMBERS[:4])}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": text(rng)}
    thought = [{"type": "thinking", "thinking": text(rng), "signature": "a"}] * rng.randrange(2)
    turn = [
        {"role": "assistant", "content": [*thought, call]},
        {"role": "user", "content": [result]},
    ]
    asked = {
        "role": "user",
        "content": rng.choice((text(rng), [{"type": "text", "text": text(rng)}])),
    }
    tool = {"name": "f", "input_schema": schema(rng), "strict": _flag(rng)}
    return {
        "model": MODEL,
        "max_tokens": 16,
        "messages": [asked, *turn[: rng.choice((0, 2))]],
        "tools": [tool] * rng.randrange(2),
    }


def schema(rng: random.Random) -> Json:
    """Return a schema that can be enforced."""
    kinds = ({"type": "string", "maxLength": 8}, {"type": "integer"}, {"enum": ["a", "b"]})
    properties = {name: rng.choice(kinds) for name in "abc"[: rng.randint(1, 3)]}
    required = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def response_format(rng: random.Random) -> Json:
    """Return a format of each type."""
    kind = rng.choice(("text", "json_object", "json_schema", "regex", "ebnf"))
    inner: Json = {
        "json_schema": {"json_schema": {"name": "s", "schema": schema(rng), "strict": True}},
        "regex": {"regex": "[a-z]{1,8}"},
        "ebnf": {"ebnf": 'root ::= "a" root | "b"'},
    }
    return {"type": kind} | inner.get(kind, {})


def tools(rng: random.Random) -> list[Json]:
    """Return one to three tools."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool{i}",
                "description": "A tool.",
                "parameters": schema(rng),
                "strict": rng.random() < 0.5,
            },
        }
        for i in range(rng.randint(1, 3))
    ]


def _flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _integer(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def _number(low: float, high: float) -> Draw:
    return lambda rng: rng.choice((low, high, rng.uniform(low, high)))


def _of(*values: Json) -> Draw:
    return lambda rng: rng.choice(values)


FIELDS: dict[str, Draw] = {
    "n": _of(1, 1, 2, 4),
    "max_tokens": _integer(1, MAX_TOKENS),
    "max_completion_tokens": _integer(1, MAX_TOKENS),
    "min_tokens": _integer(0, 8),
    "temperature": _number(0, 2),
    "top_p": _number(0.01, 1),
    "top_k": _integer(-1, 50),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.1, 10),
    "logit_bias": lambda r: {str(r.randrange(VOCABULARY)): r.uniform(-100, 100) for _ in range(5)},
    "seed": _integer(-(2**63), 2**63 - 1),
    "stop": lambda r: r.choice(("e", ["e", "the"], [" "] * 16)),
    "stop_token_ids": lambda r: token_ids(r)[:3],
    "ignore_eos": _flag,
    "stream": _flag,
    "stream_options": lambda r: {"include_usage": _flag(r)},
    "speculation": lambda r: {"max_steps": r.randint(0, 4)},
    "logprobs": _of(True, False, 0, 3, 5),
    "top_logprobs": _integer(0, 20),
    "prompt_logprobs": _integer(0, 5),
    "echo": _flag,
    "suffix": _of("", None),
    "best_of": _of(1, None),
    "response_format": response_format,
    "structured_outputs": lambda r: {"json": schema(r)},
    "guided_json": schema,
    "guided_regex": _of("[a-z]{1,8}", "(yes|no)", "\\d+"),
    "guided_choice": _of(["yes", "no"], ["a"]),
    "guided_grammar": _of('root ::= "a"+', 'root ::= [0-9] root | ""'),
    "tools": tools,
    "tool_choice": _of(
        "auto", "none", "required", {"type": "function", "function": {"name": "tool0"}}
    ),
    "parallel_tool_calls": _flag,
    "reasoning_effort": _of("low", "medium", "high", "none"),
    "chat_template_kwargs": lambda r: {"enable_thinking": _flag(r)},
    "include_reasoning": _flag,
    "bad_words": lambda r: [text(r)[:20] or "a"],
    "allowed_token_ids": token_ids,
    "priority": _integer(-(2**31), 2**31 - 1),
    "return_speculation": _flag,
    "cache_salt": lambda r: (text(r) or "a")[:256],
    "user": text,
    "metadata": lambda r: {"a": text(r)[:20]},
}
_CONSTRAINTS = ("response_format", "structured_outputs", "tools", "regex", "ebnf", "json_schema")


def field_names(path: str) -> tuple[str, ...]:
    """Return the optional fields of an API's body, and those that it may be sent in error."""
    model = ChatBody if path.endswith("chat/completions") else CompletionBody
    required = {"model", "prompt", "messages"}
    return tuple(sorted((set(model.model_fields) | set(FIELDS)) - required))


def valid_body(rng: random.Random, path: str) -> dict[str, Json]:
    """Return a body of an API: fields drawn each on its own, few enough that most are accepted."""
    body: dict[str, Json] = {"model": MODEL, "max_tokens": rng.randint(1, MAX_TOKENS)}
    if path.endswith("chat/completions"):
        body["messages"] = messages(rng)
    else:
        body["prompt"] = prompt(rng)
    has_constraint = False
    for name in field_names(path):
        if rng.random() > (OFTEN if name in ("stream", "temperature", "seed") else SELDOM):
            continue
        is_constraint = name.startswith("guided_") or name in _CONSTRAINTS
        if is_constraint and has_constraint and rng.random() < 0.9:
            continue
        has_constraint |= is_constraint
        body[name] = FIELDS.get(name, anything)(rng)
    if "stream_options" in body:
        body["stream"] = True
    return body
