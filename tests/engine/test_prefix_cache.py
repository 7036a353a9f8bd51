"""Requests that share prefixes on a real core: answers, KV rows and acceptance as without a cache.

Unwritten KV is NaN, so that a read of a row that nobody computed shows.
"""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.schedule.prefix_cache import Node, PrefixCache
from specdecode_engine.stats.prometheus import EngineMetrics

ALGORITHMS = ("NONE", "STANDALONE", "EAGLE3")
EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
STATIC: dict[str, object] = {"num_steps": 3}
CHANGING = {  # one request is drafted for, two are not
    "num_steps": 3,
    "table": {"1": {"candidate_steps": [3]}, "2": {"candidate_steps": [0]}},
}


@pytest.fixture(scope="session")
def drafts(checkpoints, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Drafts by algorithm; the standalone one has another width and depth than the target."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("narrow")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=checkpoints.vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return {"STANDALONE": folder, "EAGLE3": checkpoints.eagle3}


def build(
    target: Path,
    algorithm: str = "NONE",
    draft: Path | None = None,
    *,
    speculation: dict[str, object] = STATIC,
    is_on: bool = True,
    page_size: int = 4,
    pool_tokens: int | None = None,
    dtype: str = "float32",
    overlap: bool = False,
) -> EngineCore:
    drafting = {} if draft is None else {"draft_path": str(draft), **speculation}
    document = {
        "model": {"path": str(target), "dtype": dtype},
        "speculation": {"algorithm": algorithm, **drafting},
        "memory": {"page_size": page_size, "prefix_cache": is_on},
        "scheduling": {
            "max_running_requests": 4,
            "chunked_prefill_tokens": 12,
            "overlap": overlap,
        },
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document), pool_tokens)


def pools(core: EngineCore) -> list[KVCache]:
    """The target's pool and the draft's, if there is one."""
    drafter = core.context.drafter
    return [core.context.pool] + ([drafter._pool] if drafter else [])  # type: ignore[attr-defined]


def rows_of(core: EngineCore, pages: list[int]) -> list[Tensor]:
    """Copy keys and values of pages from every pool."""
    size = core.scheduler.limits.page_size
    rows = [page * size + offset for page in pages for offset in range(size)]
    groups = [group for pool in pools(core) for group in pool.groups]
    return [part[:, rows].clone() for group in groups for part in (group.k, group.v)]


def paths(cache: PrefixCache) -> Iterator[tuple[list[int], list[int]]]:
    """Every cached prefix to its end: its tokens, with those looked ahead to, and its pages."""
    ends: list[tuple[Node, bytes, list[int]]] = [(root, b"", []) for root in cache._roots.values()]
    while ends:
        node, run, pages = ends.pop()
        if node.children:
            for child in node.children.values():
                kept = len(pages) * cache._paging.page_size * 4
                ends.append((child, run[:kept] + child.run, pages + child.pages))
        elif pages:
            yield array("i", run).tolist(), pages


def audit(warm: EngineCore, cold: EngineCore, *, lost_by_draft: bool = False) -> int:
    """Recompute every cached prefix on a cold core; return the pages that were compared.

    Pages of which the draft lacks rows are compared in the target alone.

    Args:
        lost_by_draft: rows of the draft may be zero instead.
    """
    compared, of_target = 0, 2 * len(cold.context.pool.groups)
    for tokens, pages in paths(warm.scheduler.cache):
        prompt = (*tokens, 7, 7)
        cold.submit(Request("audit", prompt, SamplingParams(seed=0, max_tokens=2)))
        sequence = cold._sequences["audit"]
        while sequence.computed < len(prompt):
            cold.step()
        fresh = rows_of(cold, sequence.pages[: len(pages)])
        for number, (ours, theirs) in enumerate(zip(rows_of(warm, pages), fresh, strict=True)):
            if lost_by_draft and number >= of_target:
                theirs[~ours.any(dim=(2, 3))] = 0
            if number >= of_target:
                may_lack = lacking_rows(warm, pages)
                ours[:, may_lack] = theirs[:, may_lack]
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)
        cold.abort("audit")
        while cold.has_work():
            cold.step()
        compared += len(pages)
    return compared


def lacking_rows(core: EngineCore, pages: list[int]) -> Tensor:
    """Mark the rows of pages of which the draft lacks some."""
    lacking = torch.tensor([page in core.scheduler._lacking for page in pages])
    return lacking.repeat_interleave(core.scheduler.limits.page_size)


@dataclass
class Watch:
    """Sees to it that a cached page keeps its rows until it is evicted.

    Rows of the draft may be missing, and are written then.
    """

    core: EngineCore
    seen: dict[int, list[Tensor | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cache = self.core.scheduler.cache
        evict = cache.evict

        def forget(count: int) -> list[int]:
            gone = evict(count)
            for page in gone:
                self.seen.pop(page, None)  # it may have been cached since the last look
            return gone

        cache.evict = forget  # type: ignore[method-assign]

    def look(self) -> None:
        of_target = 2 * len(self.core.context.pool.groups)
        for page in self.core.scheduler.cache.check():
            now: list[Tensor | None] = [*rows_of(self.core, [page])]
            if page in self.core.scheduler._lacking:
                now[of_target:] = [None] * (len(now) - of_target)
            for before, after in zip(self.seen.get(page, now), now, strict=True):
                if before is not None and after is not None:
                    torch.testing.assert_close(before, after, atol=1e-10, rtol=1e-8)
                    assert after.isfinite().all(), f"page {page} holds rows never computed"
            self.seen[page] = now


def draw_requests(count: int, vocab: int) -> list[Request]:
    """Requests that begin alike, end differently, and often come twice."""
    rng = random.Random(5)
    stems = [[rng.randrange(vocab) for _ in range(rng.randrange(3, 30))] for _ in range(5)]
    requests: list[Request] = []
    for number in range(count):
        if requests and rng.random() < 0.3:
            twin = rng.choice(requests)
            requests.append(Request(str(number), twin.prompt_ids, twin.sampling))
            continue
        stem = rng.choice(stems)
        prompt = stem[: rng.randrange(1, len(stem) + 1)]
        prompt += [rng.randrange(vocab) for _ in range(rng.choice((0, 0, 1, 5)))]
        sampling = SamplingParams(
            seed=rng.randrange(3),
            max_tokens=rng.choice((1, 2, 4, 9, 20)),
            temperature=rng.choice((0.0, 1.0)),
            repetition_penalty=rng.choice((1.0, 1.2)),
            logprobs=rng.choice((None, None, 2)),
            ignore_eos=True,
        )
        requests.append(Request(str(number), tuple(prompt), sampling))
    return requests


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    is_aborted: bool = False


def serve(
    core: EngineCore, requests: list[Request], *, aborts: bool = False, watch: Watch | None = None
) -> list[Answer]:
    """Run requests as they arrive, a few at a time, looking for leaks after every step."""
    rng = random.Random(9)
    answers = [Answer() for _ in requests]
    waiting = list(requests)
    while waiting or core.has_work():
        for _ in range(min(rng.randrange(4), len(waiting), 12 - len(core._sequences))):
            core.submit(waiting.pop(0))
        if aborts and core._sequences and rng.random() < 0.06:
            victim = rng.choice(list(core._sequences))
            core.abort(victim)
            answers[int(victim)].is_aborted = True
        for output in core.step():
            answer = answers[int(output.request_id)]
            answer.token_ids += output.token_ids
            answer.logprobs += [record.logprob for record in output.logprobs or ()]
        core.scheduler.check()
        if watch is not None:
            watch.look()
    return answers


def assert_same(answers: list[Answer], expected: list[Answer]) -> None:
    for answer, cold in zip(answers, expected, strict=True):
        count = len(answer.token_ids) if answer.is_aborted else None
        assert answer.token_ids == cold.token_ids[:count]
        assert answer.logprobs == pytest.approx(cold.logprobs[: len(answer.logprobs)], abs=1e-9)


@pytest.fixture(scope="module")
def crowd(checkpoints) -> tuple[list[Request], list[Answer]]:
    """Requests that share prefixes, and their answers without a cache."""
    requests = draw_requests(120, checkpoints.vocab)
    return requests, serve(build(checkpoints.target, is_on=False), requests)


@pytest.mark.parametrize(
    ("algorithm", "speculation", "overlap"),
    [
        ("NONE", STATIC, False),
        ("STANDALONE", CHANGING, False),
        ("STANDALONE", STATIC, True),
        ("EAGLE3", STATIC, False),
        ("EAGLE3", CHANGING, True),
    ],
    ids=str,
)
def test_r4_many_requests_over_few_pages_answer_as_on_a_cold_engine(
    checkpoints, drafts, crowd, algorithm: str, speculation: dict[str, object], overlap: bool
) -> None:
    requests, cold = crowd
    draft = drafts.get(algorithm)
    core = build(
        checkpoints.target, algorithm, draft,
        speculation=speculation, pool_tokens=90, overlap=overlap,
    )  # fmt: skip
    answers = serve(core, requests, aborts=True, watch=Watch(core))
    assert_same(answers, cold)
    assert core.scheduler.cache.hit_tokens > 0.2 * core.scheduler.cache.queried_tokens
    assert core.scheduler.cache.evicted_pages > 20
    assert core.scheduler.available_pages == core.scheduler.pages.total
    assert audit(core, build(checkpoints.target, algorithm, draft, is_on=False)) > 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_r6_kv_behind_a_prefix_hit_equals_recomputed_kv(
    checkpoints, drafts, algorithm: str
) -> None:
    """Prompt and answer of a request that took up a prefix, target's rows and draft's."""
    prompt = tuple(range(10, 31))
    first = Request("0", prompt, SamplingParams(seed=0, max_tokens=9, temperature=0))
    second = Request("0", (*prompt[:14], 3, 3), SamplingParams(seed=0, max_tokens=30))
    warm, cold = (
        build(checkpoints.target, algorithm, drafts.get(algorithm), is_on=is_on)
        for is_on in (True, False)
    )
    serve(warm, [first])
    rows, matched = [], []
    for core in (warm, cold):
        core.submit(second)
        sequence = core._sequences["0"]
        while len(sequence.tokens) < 36:
            core.step()
        rows.append(rows_of(core, sequence.pages[:7]))
        matched.append(sequence.matched)
        assert sequence.reusable >= 28
    assert matched == [12, 0]
    for ours, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


def test_r6_the_row_of_the_last_matched_token_depends_on_the_next_one(checkpoints, drafts) -> None:
    """EAGLE's row 7 was computed from token 8, which differs: its page is recomputed."""
    matched = {}
    for algorithm in ALGORITHMS:
        core = build(checkpoints.target, algorithm, drafts.get(algorithm))
        sampling = SamplingParams(seed=0, max_tokens=4)
        serve(core, [Request("0", tuple(range(9)), sampling)])
        core.submit(Request("0", (*range(8), 50), sampling))
        sequence = core._sequences["0"]
        core.step()
        matched[algorithm] = sequence.matched
    assert matched == {"NONE": 8, "STANDALONE": 8, "EAGLE3": 4}


@pytest.mark.parametrize("overlap", [False, True])
def test_r6_rows_that_the_draft_lost_at_depth_0_are_zero(
    checkpoints, drafts, overlap: bool
) -> None:
    """While two requests run nothing is drafted for longer than features are kept."""
    core = build(
        checkpoints.target, "EAGLE3", drafts["EAGLE3"], speculation=CHANGING, overlap=overlap
    )
    for name, count in (("0", 140), ("1", 90)):
        prompt = (int(name), *range(40, 54))
        core.submit(
            Request(name, prompt, SamplingParams(seed=0, max_tokens=count, ignore_eos=True))
        )
    watch = Watch(core)
    while core.has_work():
        core.step()
        watch.look()
    assert core.counters.decode.drafted_tokens > 0
    assert core.context.drafter is not None
    assert not core.context.drafter.is_complete(1)
    again = build(checkpoints.target, "EAGLE3", drafts["EAGLE3"], is_on=False)
    assert audit(core, again, lost_by_draft=True) == 38 + 25
    *_, values_of_draft = rows_of(core, sorted(core.scheduler.cache.check()))
    assert (~values_of_draft.any(dim=(2, 3))).sum() > 2 * 64


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_r6_hits_with_speculation_are_within_a_page_of_hits_without(
    checkpoints, drafts, algorithm: str
) -> None:
    core = build(checkpoints.target, algorithm, drafts.get(algorithm))
    sampling = SamplingParams(seed=0, max_tokens=30, temperature=0, ignore_eos=True)
    (answer,) = serve(core, [Request("0", (5, 6, 7), sampling)])
    core.submit(Request("1", (5, 6, 7, *answer.token_ids, 9), sampling))
    sequence = core._sequences["1"]
    core.step()
    assert sequence.matched >= 32 - 4


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE3"])
def test_r6_accept_length_with_hits_is_that_without(algorithm: str) -> None:
    """Trained models: a stale draft row would show in what the target accepts."""
    folder = EXAMPLES / ("draft" if algorithm == "STANDALONE" else "eagle3")
    rng = random.Random(1)
    stems = [tuple(rng.randrange(300, 1000) for _ in range(24)) for _ in range(3)]
    sampling = SamplingParams(seed=0, max_tokens=24, temperature=0, ignore_eos=True)
    requests = [
        Request(str(number), (*stems[number % 3], *rng.choices(range(300, 1000), k=6)), sampling)
        for number in range(36)
    ]
    lengths, answers = [], []
    for is_on in (True, False):
        core = build(EXAMPLES / "target", algorithm, folder, is_on=is_on, dtype="float32")
        answers.append(serve(core, requests))
        lengths.append(core.counters.decode.accept_length)
        hits = core.scheduler.cache.hit_tokens
        assert (hits > 15 * 36) == is_on
    assert_same_texts(*answers)
    assert lengths[1] > 1.3
    assert lengths[0] == pytest.approx(lengths[1], rel=0.02)


def assert_same_texts(left: list[Answer], right: list[Answer]) -> None:
    assert [answer.token_ids for answer in left] == [answer.token_ids for answer in right]


@pytest.mark.parametrize("overlap", [False, True])
def test_cached_tokens_are_those_of_the_first_admission(checkpoints, overlap: bool) -> None:
    """A preempted request finds its own prompt in the cache, which nobody had computed before."""
    core = build(checkpoints.target, overlap=overlap)
    sampling = SamplingParams(seed=0, max_tokens=12, ignore_eos=True)
    cached = []
    for name, prompt in (("0", tuple(range(20))), ("1", (*range(10), *range(60, 70)))):
        core.submit(Request(name, prompt, sampling))
        sequence = core._sequences[name]
        outputs = []
        while core.has_work():
            outputs += core.step()
            if sequence.req_index is not None and sequence.output_tokens == 5:
                core.preempt(sequence)
        assert sum(len(output.token_ids) for output in outputs) == 12
        cached.append({output.cached_tokens for output in outputs})
        assert sequence.matched == 24
    assert cached == [{0}, {8}]


def test_switched_off_nothing_is_kept(checkpoints) -> None:
    core = build(checkpoints.target, is_on=False)
    serve(core, draw_requests(10, checkpoints.vocab))
    assert core.scheduler.cache.pages == 0
    assert core.scheduler.cache.queried_tokens == 0
    assert core.scheduler.pages.free == core.scheduler.pages.total


def test_a_prompt_that_is_cached_whole_still_gets_its_first_token(checkpoints, drafts) -> None:
    for algorithm in ALGORITHMS:
        core = build(checkpoints.target, algorithm, drafts.get(algorithm))
        request = Request("0", tuple(range(20, 28)), SamplingParams(seed=3, max_tokens=9))
        first, second = serve(core, [request]), serve(core, [request])
        assert_same(second, first)
        assert core.scheduler.cache.hit_tokens == 4


def test_hits_and_pages_are_exported(checkpoints) -> None:
    core = build(checkpoints.target)
    sampling = SamplingParams(seed=0, max_tokens=1)
    for _ in range(2):
        serve(core, [Request("0", tuple(range(20, 37)), sampling)])
    registry = EngineMetrics(core.snapshot).registry
    values = {
        name: registry.get_sample_value(f"specdecode_prefix_cache_{name}")
        for name in ("queried_tokens_total", "hit_tokens_total", "evicted_pages_total", "pages")
    }
    assert list(values.values()) == [2 * 17, 16, 0, 4]
    assert registry.get_sample_value("specdecode_prompt_tokens_total") == 17 + 1


def test_the_flag_of_sglang_switches_it_off() -> None:
    arguments = ["--model-path", "/models/m"]
    assert parse_flags(arguments).memory.prefix_cache
    assert not parse_flags([*arguments, "--disable-radix-cache"]).memory.prefix_cache


def test_finish_reasons_are_unchanged(checkpoints) -> None:
    core = build(checkpoints.target)
    sampling = SamplingParams(seed=0, max_tokens=3, logit_bias={5: 100.0})
    for _ in range(2):
        core.submit(Request("0", tuple(range(12)), sampling))
        outputs = [output for _ in range(3) for output in core.step()]
        assert outputs[-1].finish_reason is FinishReason.STOP
