"""Requests of which one token, or none, may be generated: that token, or an error by name."""

from typing import Any

import pytest
import torch

from specdecode_engine.batch.request import FinishReason, Output, SamplingParams
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.engine import EngineCore
from specdecode_engine.sampling.sampler import NO_TOKEN, Sampler
from tests.engine.test_token_rules import PROMPT, core_of, run, tokens
from tests.kernels.hashes import LARGEST, seed_of

TOKEN, OTHER, COUNT = 42, 17, 6
CASES = [("NONE", 1, False), ("EAGLE3", 1, True), ("EAGLE", 3, True), ("NGRAM", 1, True)]


@pytest.fixture(scope="module", params=CASES)
def core(checkpoints, request: pytest.FixtureRequest) -> EngineCore:
    return core_of(checkpoints, *request.param)


def sampling(allowed: set[int], seed: int = 7, **fields: object) -> SamplingParams:
    given = {"temperature": 1.0, "ignore_eos": True, "allowed_token_ids": frozenset(allowed)}
    return SamplingParams(seed, COUNT, **given | fields)  # type: ignore[arg-type]


def ends_with_an_error(outputs: list[Output], position: int) -> bool:
    last = outputs[-1]
    named = f"no token is allowed at position {position} of"
    return last.finish_reason is FinishReason.ERROR and named in (last.error or "")


def test_the_only_allowed_token_is_generated_at_any_hash(core) -> None:
    """One of the largest hashes at some position of the answer, in each request at another one."""
    params = {
        str(place): sampling({TOKEN}, seed_of(LARGEST - 9 * place, TOKEN, len(PROMPT) + place))
        for place in (0, 1, COUNT - 1)
    }
    params["top_k"] = sampling({TOKEN, OTHER}, params["5"].seed, top_k=1, logit_bias={TOKEN: 90.0})
    for name, outputs in run(core, params).items():
        assert tokens(outputs) == [TOKEN] * COUNT, name
        assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_without_a_token_ends_with_an_error(core, temperature: float) -> None:
    """The rules leave none at the start, or after two tokens; other requests continue."""
    fields: dict[str, Any] = {"temperature": temperature, "logit_bias": {TOKEN: 90.0}}
    params = {
        "none": sampling({TOKEN}, bad_words=((TOKEN,),), temperature=temperature),
        "later": sampling({TOKEN, OTHER}, bad_words=((OTHER,), (TOKEN, TOKEN, TOKEN)), **fields),
        "other": sampling({TOKEN}, temperature=temperature),
    }
    outputs = run(core, params)
    assert ends_with_an_error(outputs["none"], len(PROMPT))
    assert not tokens(outputs["none"])
    assert ends_with_an_error(outputs["later"], len(PROMPT) + 2)
    assert tokens(outputs["later"]) == [TOKEN, TOKEN][: len(tokens(outputs["later"]))]
    assert tokens(outputs["other"]) == [TOKEN] * COUNT


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_forbidden_tokens_have_no_token(temperature: float, dtype: torch.dtype) -> None:
    """The model itself may forbid what the request allows."""
    sampler = Sampler(6, StagingBuffer(torch.device("cpu")))
    allowed = frozenset({4, 5})
    params = SamplingParams(1, 1, temperature=temperature, top_k=2, allowed_token_ids=allowed)
    sampler.open(1, params, [0], [])
    logits = torch.zeros(1, 3, 6, dtype=dtype)
    logits[0, 0, 4:] = -torch.inf
    logits[0, 1, 5] = -1e4
    logits[0, 1, 4] = -torch.inf
    logits[0, 2, 5] = torch.inf
    found = sampler.sample(logits, sampler.stage([1]), torch.arange(3)[None])
    assert found.tolist() == [[NO_TOKEN, 5, 5]]
