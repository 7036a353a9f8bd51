"""Speculative text equals plain text with targets and drafts of every family."""

from dataclasses import replace
from pathlib import Path

import pytest

from checks.lossless.families import FAMILIES, LLAMA, LONGROPE, RECURRENT, make_family
from checks.lossless.poison import build_poisoned
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

ALGORITHMS = ("STANDALONE", "EAGLE", "EAGLE3")
MAX_TOKENS = 16
WINDOW = 4
NUM_STEPS = 5
"""Deeper than a window, so that a drafted token does not see all of its ancestors."""


# `test_rotary_tables.py` has the family with rotary angles by length, `test_recurrent.py` those
# with states.
@pytest.fixture(
    scope="module",
    params=[one for one in FAMILIES if one not in (LLAMA, LONGROPE, *RECURRENT)],
)
def family(
    request: pytest.FixtureRequest,
    checkpoints: Checkpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Checkpoints:
    """The tiny checkpoints, with target and STANDALONE draft of another family."""
    folder: Path = tmp_path_factory.mktemp(request.param)

    def make(name: str, llama: Path) -> Path:
        return make_family(request.param, llama, folder / name, window=WINDOW)

    target, draft = make("target", checkpoints.target), make("draft", checkpoints.draft)
    return replace(checkpoints, target=target, draft=draft)


def make_core(
    checkpoints: Checkpoints, algorithm: str, topk: int = 1, **memory: object
) -> EngineCore:
    memory["page_size"] = 4
    boot = boot_of(checkpoints, algorithm, topk, num_steps=NUM_STEPS, memory=memory)
    return build_poisoned(EngineBoot.model_validate(boot))


def answer(core: EngineCore, *, preempted_at_step: int | None = None) -> dict[str, Answer]:
    """Answer prompts of 19 to 28 tokens."""
    return run(core, requests_of(97, 4, MAX_TOKENS), preempted_at_step)


@pytest.fixture(scope="module")
def plain(family: Checkpoints) -> dict[str, Answer]:
    return answer(make_core(family, "NONE"))


@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_text_equals_plain_text(
    family: Checkpoints, plain: dict[str, Answer], algorithm: str, topk: int
) -> None:
    core = make_core(family, algorithm, topk)
    assert answer(core, preempted_at_step=6) == plain
    assert core.counters.decode.drafted_tokens > 0


@pytest.mark.parametrize("topk", [1, 4])
def test_requests_that_verify_different_numbers_of_nodes_keep_their_text(
    family: Checkpoints, plain: dict[str, Answer], topk: int
) -> None:
    core = make_core(family, "EAGLE3", topk)
    core.choose_rows = RandomVerifyRows(topk)
    assert answer(core, preempted_at_step=6) == plain
    assert core.counters.decode.verified_tokens < core.counters.decode.drafted_tokens


def test_text_equals_plain_text_with_a_float8_cache(family: Checkpoints) -> None:
    plain = answer(make_core(family, "NONE", kv_cache_dtype="fp8_e4m3"))
    assert answer(make_core(family, "EAGLE3", 4, kv_cache_dtype="fp8_e4m3")) == plain


def test_a_draft_that_is_the_target_is_always_right(family: Checkpoints) -> None:
    """Greedy requests alone: a draft knows no penalties."""
    core = make_core(replace(family, draft=family.target), "STANDALONE")
    run(core, requests_of(97, 4, 1 + 2 * (NUM_STEPS + 1))[::2])
    decode = core.counters.decode
    assert decode.accepted_tokens == decode.drafted_tokens == 2 * 2 * NUM_STEPS
