"""Prompts that a draft at rest leaves out: the next draft computes them, or whoever reuses them."""

import pytest

from checks.drafts_zoo.drafting import record_drafts
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_rest import MOST_WAITING, DraftRest
from specdecode_engine.adaptive.policy import Decision, Reason, StaticPolicy
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.request_table import Rows
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.model_drafter import ModelDrafter
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import boot_of, requests_of, run, tokens_of

TABLE = {"1": {"candidate_steps": [0, 3]}}


class Dictated(StaticPolicy):
    """The draft steps that a test sets."""

    def __init__(self) -> None:
        super().__init__(3)
        self.num_steps = 0

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        return Decision(self.num_steps, 1, 0, Reason.KEEP)


def build(checkpoints: Checkpoints, *, overlap: bool = False, is_on: bool = True) -> EngineCore:
    """An engine whose unwritten KV is NaN, and whose draft has rested for a request."""
    document = boot_of(checkpoints, "STANDALONE", 1)
    document["speculation"] |= {"policy": "static", "table": TABLE}
    document["scheduling"]["overlap"] = overlap
    document["memory"] = {"page_size": 4, "prefix_cache": is_on}
    core = build_poisoned(EngineBoot.model_validate(document))
    core.scheduler.drafting.policy = Dictated()
    run(core, [Request("first", (3, 1), SamplingParams(0, 4, ignore_eos=True))])
    return core


def policy_of(core: EngineCore) -> Dictated:
    policy = core.scheduler.drafting.policy
    assert isinstance(policy, Dictated)
    return policy


def count_rows(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives how many rows the draft computes apart from those of drafts."""
    drafter, counts = core.context.drafter, list[int]()
    assert isinstance(drafter, ModelDrafter)
    compute = drafter._compute

    def counted(rows: Rows, hidden: None = None) -> None:
        counts.append(len(rows.positions))
        compute(rows, hidden)

    monkeypatch.setattr(drafter, "_compute", counted)
    monkeypatch.setattr(drafter._pending, "_compute", counted)
    return counts


def answer(core: EngineCore, requests: list[Request], stay: int) -> dict[str, list[int]]:
    """Answer requests, the first `stay` steps without drafts."""
    texts: dict[str, list[int]] = {one.request_id: [] for one in requests}
    policy_of(core).num_steps = 0
    for one in requests:
        core.submit(one)
    while core.has_work():
        policy_of(core).num_steps = 3 if stay <= 0 else 0
        stay -= 1
        for output in core.step():
            texts[output.request_id] += output.token_ids
        core.scheduler.check()
    return texts


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stay", [1, 4, 9, 20])
def test_drafts_are_the_same_after_prompts_that_waited(
    checkpoints: Checkpoints, overlap: bool, stay: int
) -> None:
    """Prompts take several chunks, of which the last ones may meet a step that drafts."""
    requests = requests_of(checkpoints.vocab, 4, 30)
    found = []
    for rest in (None, DraftRest()):
        core = build(checkpoints, overlap=overlap)
        core.scheduler.drafting.rest = rest or core.scheduler.drafting.rest
        drafts = record_drafts(core)
        texts = answer(core, requests, stay)
        found.append((texts, drafts))
    assert found[0] == found[1]
    assert found[0][1]


def test_answers_that_end_before_the_next_draft_cost_the_draft_nothing(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = build(checkpoints)
    rows = count_rows(core, monkeypatch)
    answer(core, requests_of(checkpoints.vocab, 4, 20), stay=10**6)
    assert not rows
    core.scheduler.drafting.rest = DraftRest()
    answer(core, requests_of(checkpoints.vocab, 4, 20), stay=10**6)
    assert rows


def test_no_more_rows_of_a_long_prompt_wait_than_a_step_can_compute(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = build(checkpoints)
    rows = count_rows(core, monkeypatch)
    prompt = tuple(place % 50 for place in range(MOST_WAITING + 20))
    answer(core, [Request("0", prompt, SamplingParams(0, 4, ignore_eos=True))], stay=10**6)
    assert rows == [MOST_WAITING // 12 * 12 + 12]  # the chunk that exceeds it, and all before


@pytest.mark.parametrize("overlap", [False, True])
def test_a_draft_catches_up_in_chunks_after_a_long_rest(
    checkpoints: Checkpoints, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No forward is larger than a prefill's, and drafts are those after one forward over all."""
    requests, found, counts = requests_of(checkpoints.vocab, 2, 90), [], []
    for most_rows in (None, 10**6):
        core = build(checkpoints, overlap=overlap)
        assert isinstance(core.context.drafter, ModelDrafter)
        if most_rows:
            monkeypatch.setattr(core.context.drafter._pending, "_most_rows", most_rows)
        rows, drafts = count_rows(core, monkeypatch), record_drafts(core)
        found.append((answer(core, requests, stay=60), drafts))
        counts.append(rows)
    assert found[0] == found[1]
    assert found[0][1]
    chunked, whole = counts
    assert max(chunked) == core.scheduler.limits.chunk_tokens < 60 < max(whole)
    assert sum(chunked) == sum(whole)


@pytest.mark.parametrize("overlap", [False, True])
def test_whoever_reuses_pages_that_the_draft_lacks_has_them_computed(
    checkpoints: Checkpoints, overlap: bool
) -> None:
    """The second turn reuses all of the first one, and drafts as on an engine without a cache."""
    first = requests_of(checkpoints.vocab, 2, 20)
    found = []
    for is_on in (True, False):
        core = build(checkpoints, overlap=overlap, is_on=is_on)
        before = set(core.scheduler._lacking)
        texts = answer(core, first, stay=10**6)
        lacking = core.scheduler._lacking - before
        asked = [
            Request(one.request_id, (*one.prompt_ids, *texts[one.request_id], 5), one.sampling)
            for one in first
        ]
        hits, drafts = core.scheduler.cache.hit_tokens, record_drafts(core)
        again = answer(core, asked, stay=1)
        assert (core.scheduler.cache.hit_tokens - hits >= 2 * 32) is is_on
        assert bool(lacking) is is_on
        assert not lacking & core.scheduler._lacking
        found.append((again, drafts))
    assert found[0] == found[1]


def test_a_preempted_request_that_waits_keeps_its_pages(checkpoints: Checkpoints) -> None:
    core = build(checkpoints)
    (request,) = requests_of(checkpoints.vocab, 1, 20)
    expected = answer(core, [request], stay=10**6)
    core = build(checkpoints)
    assert tokens_of(run(core, [request], preempted_at_step=9)) == expected
    assert core.scheduler.cache.hit_tokens >= 16


def test_after_a_long_answer_the_prompt_is_computed_and_the_answer_zero(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = build(checkpoints)
    (request,) = requests_of(checkpoints.vocab, 1, MOST_WAITING + 20)
    rows = count_rows(core, monkeypatch)
    before = set(core.scheduler._lacking)
    answer(core, [request], stay=10**6)
    assert rows == [len(request.prompt_ids)]
    assert core.scheduler._lacking == before
    assert core.scheduler.cache.pages * 4 > MOST_WAITING


def test_nothing_waits_where_the_time_of_a_step_is_limited(checkpoints: Checkpoints) -> None:
    drafting = build(checkpoints).scheduler.drafting
    assert drafting.defers_prompts
    drafting.policy.reload(drafting.policy.table.within(1.0))
    assert not drafting.defers_prompts
