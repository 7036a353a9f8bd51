"""Responses with very many log-probabilities are encoded in pieces."""

import json
import random
from typing import Any

from specdecode_engine.serve.openai import json_text
from specdecode_engine.serve.openai.json_text import to_json


def scored(tokens: int) -> list[dict[str, Any] | None]:
    places = {str(each): {"logprob": -0.5, "decoded_token": '"é'} for each in range(20)}
    return [None, *[places] * (tokens - 1)]


def test_pieces_are_the_same_text() -> None:
    random.seed(3)
    leaves: list[Any] = [None, True, 1.5, "a,[{\n", "é", "", 2**70, [], {}]

    def value(depth: int) -> Any:
        kind = random.randrange(3) if depth else 0
        count = random.choice([0, 1, 3, 16, 17, 33])
        if kind == 0:
            return random.choice(leaves)
        if kind == 1:
            return [value(depth - 1) for _ in range(count)]
        return {f"k{each}": value(depth - 1) for each in range(count)}

    for _ in range(20):
        document = {"choices": [value(2) for _ in range(20)], "other": value(2), "": value(1)}
        assert to_json(document, in_pieces=True) == to_json(document)


def test_no_piece_of_a_long_response_is_long() -> None:
    choices = [{"index": each, "logprobs": {"content": scored(500)}} for each in range(40)]
    document = {"choices": choices, "prompt_logprobs": scored(5000)}
    pieces = [*json_text._pieces(document, json.dumps)]
    assert json.loads("".join(pieces)) == document
    assert max(map(len, pieces)) < 20_000 < sum(map(len, pieces)) / 1000
