"""`min_tokens`, `bad_words` and allowed tokens in a whole engine: kept to, with any draft."""

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import FinishReason, Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from tests.engine.whole_engine import boot_of

PROMPT = (3, 14, 15, 92, 65)
MAX_TOKENS = 20


def core_of(checkpoints, algorithm: str, topk: int, overlap: bool = False) -> EngineCore:
    scheduling = {"max_running_requests": 4, "overlap": overlap}
    document = boot_of(checkpoints, algorithm, topk, scheduling=scheduling)
    document["model"]["dtype"] = "float64"
    return build_poisoned(EngineBoot.model_validate(document))


@pytest.fixture(scope="module")
def plain(checkpoints) -> EngineCore:
    return core_of(checkpoints, "NONE", 1)


@pytest.fixture(
    scope="module", params=[("EAGLE3", 1, False), ("EAGLE", 3, True), ("STANDALONE", 1, True)]
)
def drafting(checkpoints, request: pytest.FixtureRequest) -> EngineCore:
    return core_of(checkpoints, *request.param)


def run(core: EngineCore, params: dict[str, SamplingParams]) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {name: [] for name in params}
    for name, each in params.items():
        core.submit(Request(name, PROMPT, each))
    while core.has_work():
        for output in core.step():
            outputs[output.request_id].append(output)
    return outputs


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def sampling(temperature: float, **fields: object) -> SamplingParams:
    fields = {"ignore_eos": True} | fields
    return SamplingParams(7, MAX_TOKENS, temperature=temperature, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[0.0, 1.0])
def rules(plain, request: pytest.FixtureRequest) -> dict[str, SamplingParams]:
    """Rules that forbid what the model generates without them."""
    temperature = float(request.param)
    free = tokens(run(plain, {"free": sampling(temperature)})["free"])
    pair, triple = tuple(free[1:3]), tuple(free[4:7])
    return {
        "free": sampling(temperature),
        "short": sampling(temperature, stop_token_ids=frozenset(free[2:9])),
        "long": sampling(temperature, stop_token_ids=frozenset(free[2:9]), min_tokens=12),
        "words": sampling(temperature, bad_words=(pair, triple, (free[9],))),
        "few": sampling(
            temperature, allowed_token_ids=frozenset(free[::2]), logit_bias={free[1]: 9.0}
        ),
    }


def test_the_rules_are_kept(plain, rules) -> None:
    answers = {name: tokens(each) for name, each in run(plain, rules).items()}
    assert len(answers["short"]) <= 3
    assert len(answers["long"]) > 12
    assert rules["long"].stop_token_ids.isdisjoint(answers["long"][:12])
    text = answers["words"]
    for word in rules["words"].bad_words:
        places = range(len(text) - len(word) + 1)
        assert not any(tuple(text[place : place + len(word)]) == word for place in places)
    assert text != answers["free"]
    assert rules["few"].allowed_token_ids is not None
    assert rules["few"].allowed_token_ids.issuperset(answers["few"])
    assert len(answers["few"]) == MAX_TOKENS


def test_speculation_changes_nothing(plain, drafting, rules) -> None:
    wanted, found = run(plain, rules), run(drafting, rules)
    for name in rules:
        assert tokens(found[name]) == tokens(wanted[name]), name
        assert found[name][-1].finish_reason is wanted[name][-1].finish_reason


def test_eos_is_forbidden_too(plain, rules) -> None:
    free = tokens(run(plain, {"free": rules["free"]})["free"])
    eos = plain.eos_token_ids
    plain.eos_token_ids = frozenset({free[0]})
    try:
        fields = {"ignore_eos": False}
        temperature = rules["free"].temperature
        answers = run(
            plain,
            {
                "short": sampling(temperature, **fields),
                "long": sampling(temperature, min_tokens=5, **fields),
            },
        )
    finally:
        plain.eos_token_ids = eos
    assert tokens(answers["short"]) == free[:1]
    assert answers["short"][-1].finish_reason is FinishReason.STOP
    assert free[0] not in tokens(answers["long"])[:5]
