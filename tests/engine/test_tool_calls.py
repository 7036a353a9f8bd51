"""Required calls from a random model: valid in every format, and equal with and without a draft."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import pytest

from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import Grammar, GrammarCompiler, TokenBytes
from specdecode_engine.serve.parsers.message import ParserContext, ToolCallDelta
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.parsers.tool_grammar import MessageConstraint, ToolSchema, constrain
from tests.engine.test_structured_output import Answer, make_core, run

VOCAB, EOS, FIRST_MARKER = 97, 5, 88
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["oslo", "rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "exact"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
CHARACTERS = ' "(){}[]:,;=._-/<>|\\`\n' + "0123456789" + "abcdefghijklmnopqrstuvwxyz" + "AT"
FORMATS = sorted(TOOL_FORMATS)


@dataclass(frozen=True)
class ToolModel:
    """A format's tokens in the vocabulary of the random checkpoints, and its grammar of calls."""

    spellings: list[bytes]
    marker_ids: dict[str, int]
    grammar: Grammar

    def text(self, answer: Answer) -> str:
        return b"".join(self.spellings[token] for token in answer.tokens if token != EOS).decode()


def make_model(name: str) -> ToolModel:
    markers = sorted(TOOL_FORMATS[name].special_tokens)
    marker_ids = {marker: FIRST_MARKER + index for index, marker in enumerate(markers)}
    spellings = [b"<pad>"] * VOCAB
    spellings[EOS] = b"</s>"
    free = [token for token in range(FIRST_MARKER) if token not in (0, 1, EOS)]
    for token, char in zip(free, CHARACTERS, strict=False):
        spellings[token] = char.encode()
    for marker, token in marker_ids.items():
        spellings[token] = marker.encode()
    others = {token for token, text in enumerate(spellings) if text == b"<pad>"}
    special = frozenset(marker_ids.values()) | others
    parameters = {k: v for k, v in PARAMETERS.items() if k != "x-guidance" or name not in PLAIN}
    tools = (ToolSchema("weather", parameters, True, "tools[0].function.parameters"),)
    wanted = MessageConstraint(name, None, tools, is_required=True, is_parallel=False)
    source = constrain(wanted, marker_ids)
    assert source is not None
    compiler = GrammarCompiler(TokenBytes(spellings, special, frozenset({EOS})))
    return ToolModel(spellings, marker_ids, compiler.compile(source))


# Formats with a rule per parameter.
PLAIN = (
    "deepseek_v32", "deepseek_v4", "functiongemma", "gemma4", "glm45", "glm47", "hy_v3", "hy_v4",
    "lfm2", "minimax_m2", "olmo3", "pythonic", "qwen3_coder", "seed_oss",
)  # fmt: skip


@pytest.fixture(scope="module")
def models() -> dict[str, ToolModel]:
    return {name: make_model(name) for name in FORMATS}


@pytest.fixture(scope="module")
def plain_tokens(checkpoints, models) -> Callable[[str], list[list[int]]]:
    """What plain decoding answers to each of a format's requests alone."""
    core = make_core(checkpoints.target, overlap=False)

    @cache
    def tokens_of(name: str) -> list[list[int]]:
        return [run(core, [request])[0].tokens for request in make_requests(models[name])]

    return tokens_of


CHAIN, TREE = (1, False), (4, True)  # topk, whether steps overlap


@pytest.fixture(scope="module")
def drafting_core(checkpoints, request) -> EngineCore:
    topk, overlap = request.param
    return make_core(
        checkpoints.target,
        overlap=overlap,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=topk,
        num_steps=4,
    )


def make_requests(model: ToolModel) -> list[Request]:
    """Requests at two temperatures; markers and the end are likely wherever they are allowed."""
    likely = dict.fromkeys((*model.marker_ids.values(), EOS), 12.0)
    return [
        Request(
            str(seed),
            (7, 11, 13 + seed),
            SamplingParams(
                seed=seed, max_tokens=240, temperature=temperature, logprobs=0, logit_bias=likely
            ),
            model.grammar,
        )
        for seed, temperature in enumerate((0.0, 1.0))
    ]


@pytest.mark.parametrize(
    ("drafting_core", "name"),
    [*((CHAIN, name) for name in FORMATS[::2]), *((TREE, name) for name in FORMATS[1::2])],
    indirect=["drafting_core"],
    ids=str,
)
def test_required_calls_are_valid_and_the_same_with_a_draft(
    models, plain_tokens, drafting_core, name
) -> None:
    model = models[name]
    answers = run(drafting_core, make_requests(model))
    assert [answer.tokens for answer in answers] == plain_tokens(name)
    for answer in answers:
        assert answer.finish_reason is FinishReason.STOP
        assert_calls_tool(name, model.text(answer))


def assert_calls_tool(name: str, text: str) -> None:
    parser = TOOL_FORMATS[name].make_parser(ParserContext(parameters={"weather": PARAMETERS}))
    deltas = [*parser.push(text), *parser.flush()]
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert [call.name for call in calls if call.name is not None] == ["weather"]
    arguments = json.loads("".join(call.arguments for call in calls))
    jsonschema.validate(arguments, PARAMETERS)
