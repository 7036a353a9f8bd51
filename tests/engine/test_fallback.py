"""NGRAM next to a draft model, in whole engines: text, state, evidence, and counters."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from checks.detection.served import SOUND, draft_of, example_requests, run_all, served_with
from checks.lossless.poison import build_poisoned
from checks.lossless.run import RandomSources
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_source import DraftSources, RequestDrafts, TimedStep
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.draft_state import KEPT_ROWS
from specdecode_engine.speculate.pending_rows import PendingRows
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import boot_of, requests_of, run

ALGORITHMS = ("STANDALONE", "EAGLE3", "MTP_CHAIN", "FROZEN_KV_MTP", "DFLASH", "PEAGLE")
REPEATING = tuple((7 * place) % 31 for place in range(9)) * 3


compute_pending = PendingRows._catch_up_one


class OnlyNgram(DraftSources):
    """Prefers whatever NGRAM found."""

    def choose(
        self, requests: Sequence[RequestDrafts], num_steps: int, kv_tokens: int
    ) -> tuple[bool, ...]:
        return tuple(one.draft_depth > 0 and not one.ngram_depth for one in requests)


def make_core(
    checkpoints: Checkpoints,
    algorithm: str,
    topk: int = 1,
    sources: DraftSources | None = None,
    ngram: dict[str, object] | None = None,
    **sections: Any,
) -> EngineCore:
    document = boot_of(checkpoints, algorithm, topk, **sections)
    document["speculation"] |= {"fallback": "NGRAM", "ngram": ngram or {}}
    core = build_poisoned(EngineBoot.model_validate(document))
    if sources is not None:
        core.context = replace(core.context, sources=sources)
    return core


GRID = [
    (algorithm, 1 if algorithm == "MTP_CHAIN" else topk, graphs, overlap)
    for (algorithm, topk), (graphs, overlap) in zip(
        itertools.product(ALGORITHMS, (1, 3)),
        itertools.cycle(itertools.product(("off", "static"), (False, True))),
        strict=False,
    )
]


@pytest.mark.parametrize(("algorithm", "topk", "graphs", "overlap"), GRID)
def test_text_is_that_of_plain_decoding_whichever_source_is_verified(
    checkpoints, algorithm: str, topk: int, graphs: str, overlap: bool
) -> None:
    plain = build_poisoned(EngineBoot.model_validate(boot_of(checkpoints, "NONE", 1)))
    requests = requests_of(plain.context.target.config.vocab_size, 3, 24)
    expected = {name: answer.tokens for name, answer in run(plain, requests).items()}
    scheduling = {"max_running_requests": 3, "chunked_prefill_tokens": 12, "overlap": overlap}
    core = make_core(
        checkpoints,
        algorithm,
        topk,
        RandomSources(1),
        {"source": "trie"},
        scheduling=scheduling,
        graphs={"mode": graphs},
        memory={"page_size": 4},
    )
    answers = run(core, requests, preempted_at_step=9)
    assert {name: answer.tokens for name, answer in answers.items()} == expected
    sources = core.counters.sources
    assert sources["ngram"].drafted > 0 < sources["model"].drafted
    assert sum(one.drafted for one in sources.values()) == core.counters.decode.drafted_tokens
    assert sum(one.accepted for one in sources.values()) == core.counters.decode.accepted_tokens


def submit_repeating(core: EngineCore, max_tokens: int, name: str = "0") -> None:
    core.submit(Request(name, REPEATING, SamplingParams(0, max_tokens, 0.0, ignore_eos=True)))


@pytest.mark.parametrize(
    ("algorithm", "topk", "graphs"),
    [
        *[(algorithm, 1, "off") for algorithm in ALGORITHMS],
        *[(one, 3, "static") for one in ("EAGLE3", "DFLASH", "DSPARK", "PEAGLE")],
    ],
)
def test_a_draft_model_that_nobody_verifies_computes_nothing(
    checkpoints, algorithm: str, topk: int, graphs: str
) -> None:
    scheduling = {"max_running_requests": 1, "overlap": False}
    more: dict[str, Any] = {"scheduling": scheduling, "graphs": {"mode": graphs}}
    core = make_core(checkpoints, algorithm, topk, OnlyNgram(), num_steps=3, **more)
    forwards, sources = core.context.graphs, core.counters.sources
    submit_repeating(core, 3 * KEPT_ROWS)
    core.step()  # its prompt
    left_out = 0
    while core.has_work():
        before = sources["model"].drafted
        with (
            patch.object(forwards, "run", wraps=forwards.run) as run_forward,
            patch.object(PendingRows, "_catch_up_one", autospec=True) as catch_up,
        ):
            catch_up.side_effect = compute_pending
            core.step()
        if sources["model"].drafted == before:
            left_out += 1
            assert [call.args[0] for call in run_forward.call_args_list] == [ForwardKind.VERIFY]
            assert not catch_up.called
    assert left_out > KEPT_ROWS / 4
    assert sources["ngram"].drafted > KEPT_ROWS


def test_a_step_without_a_match_verifies_the_draft_model_s_tokens(checkpoints) -> None:
    core = make_core(
        checkpoints, "EAGLE3", sources=OnlyNgram(), ngram={"source": "prompt", "min_match": 18}
    )
    core.submit(Request("0", (5,), SamplingParams(0, 12, 0.0, ignore_eos=True)))
    while core.has_work():
        core.step()
    assert core.counters.sources["model"].drafted == core.counters.decode.drafted_tokens > 0


def test_time_without_the_draft_model_is_not_the_cost_of_draft_steps(checkpoints) -> None:
    core = make_core(checkpoints, "EAGLE3", sources=OnlyNgram(), num_steps=3)
    submit_repeating(core, 60)
    while core.has_work():
        core.step()
    with_model = core.counters.sources["model"].drafted // 3
    assert sum(one.steps for one in core.counters.buckets.values()) <= with_model


def test_steps_with_and_without_the_draft_model_are_timed_apart(checkpoints) -> None:
    timed = list[tuple[int, bool]]()

    class Noted(OnlyNgram):
        def learn_cost(self, step: TimedStep, *, has_draft: bool) -> None:
            timed.append((step.drafted, has_draft))
            super().learn_cost(step, has_draft=has_draft)

    core = make_core(checkpoints, "EAGLE3", sources=Noted(), num_steps=3)
    submit_repeating(core, 60)
    while core.has_work():
        core.step()
    with_model = core.counters.sources["model"].drafted // 3
    assert sum(has_draft for _, has_draft in timed) == with_model
    without = [drafted for drafted, has_draft in timed if not has_draft]
    assert sum(without) == core.counters.sources["ngram"].drafted > 0


def test_agreement_counts_positions_that_the_text_decides() -> None:
    chain = Proposals(([4, 5, 6],), ([0, 1, 2],))
    assert chain.agreement(0, (4, 5, 9)) == (3, 2)
    assert chain.agreement(0, (4, 5)) == (2, 2)  # the third is not decided
    assert chain.agreement(0, (4, 5, 6, 7)) == (3, 3)
    assert chain.agreement(0, (9,)) == (1, 0)
    tree = Proposals(([4, 5, 6, 7],), ([0, 0, 2, 2],))  # 4 and 5 after the root, 6 and 7 after 5
    assert tree.agreement(0, (5, 7, 1)) == (2, 2)
    assert tree.agreement(0, (5, 8)) == (2, 1)
    assert tree.agreement(0, (4, 8)) == (1, 1)  # nothing was found after 4


def test_ngram_serves_while_the_draft_is_unfit_and_is_no_evidence_of_it(tmp_path) -> None:
    requests = example_requests(12, max_tokens=24)
    ngram = {"source": "trie", "scope": "model"}
    with served_with(
        SOUND, tmp_path / "x", policy="static", num_steps=3, fallback="NGRAM", ngram=ngram
    ) as core:
        expected = run_all(core, requests)
        before = core.counters.sources["model"].drafted
        lost = FirstPosition(proposed=9000, accepted=0, requests=24)
        core.judge_draft(Decision(3, 1, 0, Reason.STATIC), lost, 0.01)
        assert draft_of(core).is_unfit
        seen = draft_of(core).evidence
        accepted = core.counters.sources["ngram"].accepted
        assert run_all(core, requests) == expected
        assert core.counters.sources["model"].drafted == before
        assert core.counters.sources["ngram"].accepted > accepted
        assert draft_of(core).evidence == seen
        assert {state.num_steps for state in core.snapshot().ranges} == {3}
        document = json.loads(json.dumps(core.snapshot().document()))
        assert document["source_drafted_tokens_total"]["ngram"] > 0


def test_tokens_of_ngram_are_no_evidence_of_a_sound_draft(checkpoints) -> None:
    core = make_core(checkpoints, "EAGLE3", sources=OnlyNgram())
    judged = list[int]()
    judge = core.judge_draft

    def note(decision: Decision, first: FirstPosition, seconds: float) -> None:
        judged.append(first.proposed)
        judge(decision, first, seconds)

    core.judge_draft = note  # type: ignore[method-assign]
    submit_repeating(core, 80)
    while core.has_work():
        core.step()
    drafted_by_model = core.counters.sources["model"].drafted // 3
    assert sum(judged) <= drafted_by_model


def test_the_memory_of_texts_is_in_the_plan_and_the_fallback_in_the_facts(
    checkpoints, caplog
) -> None:
    caplog.set_level("INFO")
    core = make_core(checkpoints, "EAGLE3")
    assert any("NGRAM, on the host" in line for line in caplog.messages)
    assert core.facts["fallback"] == "NGRAM"


def test_the_choice_follows_what_both_sources_showed(checkpoints) -> None:
    """Random weights: the model's tokens are never accepted, and the text repeats itself."""
    core = make_core(checkpoints, "EAGLE3", num_steps=3)
    for number in range(3):
        submit_repeating(core, 120, str(number))
    while core.has_work():
        core.step()
    ngram, model = core.counters.sources["ngram"], core.counters.sources["model"]
    assert ngram.accepted > model.accepted
    assert ngram.drafted > model.drafted
