"""Whole engines with every tensor on a shadow CUDA device give the CPU's tokens."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest

from lossless.poison import build_poisoned
from specdecode_api import speculation
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Policy
from specdecode_engine.batch.request import Request
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    TokenBytes,
)
from tests.engine.whole_engine import Answer, boot_of, requests_of
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.waits import Wait

MAX_TOKENS = 12
CONTEXT = 64
TORCH_KERNELS = "/specdecode_kernels/torch/"
"""Ops in plain torch wait where the kernels that a GPU runs do not: these waits are not counted."""


@dataclass(frozen=True, slots=True)
class ShadowCase:
    """One engine, what it is asked, and the waits that a steady decode step may have at most.

    `waits` is what was measured, with new pages where a step needs them; it may only become less.
    None: the depth follows measured times, and the waits with it. A step is steady when every
    request decodes and nothing is captured.
    """

    name: str
    waits: int | None
    algorithm: str = "NONE"
    topk: int = 1
    graphs: str = "off"
    overlap: bool = True
    dtype: str = "float32"
    requests: str = "greedy"
    speculation: dict[str, object] = field(default_factory=dict)
    max_seconds: float = 60.0  # of capturing at start
    preempted_at_step: int | None = None
    waves: int = 1  # later ones find their prompts in the prefix cache


BY_RANGE: dict[str, object] = {
    "table": {"1": {"candidate_steps": [3]}, "3": {"candidate_steps": [1]}}
}
GOODPUT = {
    "policy": "goodput",
    "profile_seconds": 0.05,
    "table": {"1": {"candidate_steps": [1, 3]}, "3": {"candidate_steps": [0, 1]}},
}

CASES = (
    ShadowCase("plain", 0),
    ShadowCase("plain-sync-sampled", 0, overlap=False, requests="sampled"),
    ShadowCase("plain-graphs", 0, graphs="cuda", waves=2),
    ShadowCase("plain-grammar", 0, requests="grammar"),
    ShadowCase("standalone-sync", 0, "STANDALONE", overlap=False),
    ShadowCase("standalone-graphs-sampled", 0, "STANDALONE", graphs="cuda", requests="sampled"),
    ShadowCase("standalone-tree", 0, "STANDALONE", 2, requests="scored"),
    ShadowCase("standalone-tree-graphs-sync", 0, "STANDALONE", 2, "cuda", overlap=False),
    ShadowCase("eagle", 0, "EAGLE", preempted_at_step=5),
    ShadowCase("eagle-graphs-sync", 0, "EAGLE", graphs="cuda", overlap=False, requests="scored"),
    ShadowCase("eagle-tree-graphs", 0, "EAGLE", 2, "cuda", waves=2),
    ShadowCase("eagle3", 0, "EAGLE3"),
    ShadowCase("eagle3-graphs-bf16", 0, "EAGLE3", graphs="cuda", dtype="bfloat16"),
    ShadowCase("eagle3-graphs-by-range", 0, "EAGLE3", graphs="cuda", speculation=BY_RANGE),
    ShadowCase("eagle3-graphs-goodput", None, "EAGLE3", graphs="cuda", speculation=GOODPUT),
    ShadowCase("eagle3-graphs-grammar", 0, "EAGLE3", graphs="cuda", requests="grammar"),
    ShadowCase(
        "eagle3-graphs-idle",
        0,
        "EAGLE3",
        graphs="cuda",
        max_seconds=0.0,
        preempted_at_step=5,
        waves=2,
    ),
    ShadowCase("eagle3-tree-sampled", 0, "EAGLE3", 2, overlap=False, requests="sampled"),
    ShadowCase("eagle3-tree-graphs", 0, "EAGLE3", 2, "cuda"),
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops in plain torch on both devices, as kernels in Triton need a real one."""
    monkeypatch.setenv("SPECDECODE_KERNELS", "torch")
    monkeypatch.setattr(speculation, "AVAILABLE_POLICIES", frozenset(Policy))


@pytest.fixture(scope="module")
def grammar(checkpoints) -> Grammar:
    """Words of small letters; a token is one printable character."""
    spellings = [bytes([32 + token]) if token < 95 else b"\n" for token in range(checkpoints.vocab)]
    spellings[5] = b"</s>"
    compiler = GrammarCompiler(TokenBytes(spellings, frozenset({5}), frozenset({5})))
    return compiler.compile(GrammarSource(GrammarKind.REGEX, "([a-e]{1,3} )+"))


@pytest.fixture(scope="module")
def cpu_answers() -> dict[tuple[object, ...], dict[str, Answer]]:
    """Answers of CPU engines by what they depend on; filled as they are needed."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_engine_on_the_shadow_device_gives_the_cpus_tokens(
    checkpoints, grammar: Grammar, cpu_answers, case: ShadowCase
) -> None:
    requests = list(make_requests(checkpoints.vocab, case.requests, grammar))
    key = (case.algorithm, case.topk, case.dtype, case.requests)
    if key not in cpu_answers:
        plain = replace(case, graphs="off", overlap=False, speculation={})
        cpu = build(checkpoints, plain, "cpu")
        cpu_answers[key] = drive(cpu, requests).answers
    with shadow_cuda() as gpu:
        core = build(checkpoints, case, "cuda")
        for wave in range(case.waves):
            while wave and core.idle_step():
                """Capture what the start had no time for."""
            ran = drive(core, requests, case.preempted_at_step if wave == 0 else None, gpu)
            assert_same(ran.answers, cpu_answers[key])
    assert gpu.errors == []
    assert gpu.event_waits > 0
    assert core.scheduler.cache.hit_tokens > 0 or case.waves == 1
    assert core.scheduler.preempted_total == (case.preempted_at_step is not None)
    assert (gpu.replays > 0) == (case.graphs == "cuda")
    steady = [[wait for wait in step if TORCH_KERNELS not in wait.file] for step in ran.steady]
    assert steady, "no step was steady"
    worst = max(steady, key=len)
    assert case.waits is None or len(worst) <= case.waits, "\n".join(map(str, worst))


def build(checkpoints, case: ShadowCase, device: str) -> EngineCore:
    document: dict[str, Any] = boot_of(
        checkpoints,
        case.algorithm,
        case.topk,
        scheduling={
            "max_running_requests": 4,
            "chunked_prefill_tokens": 12,
            "overlap": case.overlap,
        },
        memory={"page_size": 8},
        graphs={"mode": case.graphs, "max_seconds": case.max_seconds},
        attention_backend="torch",
        device=device,
    )
    document["model"] |= {"dtype": case.dtype, "context_length": CONTEXT}
    document["speculation"] |= case.speculation
    core = build_poisoned(EngineBoot.model_validate(document))
    assert (core.facts["device"], core.facts["graphs"]) == (device, case.graphs)
    assert core.facts["overlap"] == case.overlap
    return core


def make_requests(vocab: int, kind: str, grammar: Grammar) -> Iterator[Request]:
    """Three requests; "sampled" ones have penalties and filters, "scored" ones prompt logprobs."""
    for request in requests_of(vocab, 3, MAX_TOKENS):
        sampling = replace(request.sampling, max_tokens=MAX_TOKENS + 4 * int(request.request_id))
        if kind != "sampled":
            sampling = replace(sampling, temperature=0.0, repetition_penalty=1.0, logprobs=None)
        if kind == "scored":
            sampling = replace(sampling, logprobs=1, prompt_logprobs=1)
        bound = grammar if kind == "grammar" and request.request_id != "0" else None
        yield replace(request, sampling=sampling, grammar=bound)


@dataclass(slots=True)
class ShadowRun:
    """Answers, and the waits of each steady step."""

    answers: dict[str, Answer]
    steady: list[list[Wait]] = field(default_factory=list)


def drive(
    core: EngineCore,
    requests: list[Request],
    preempted_at_step: int | None = None,
    gpu: ShadowDevice | None = None,
) -> ShadowRun:
    """Run requests together to their ends."""
    ran = ShadowRun(defaultdict(Answer))
    has_ended = False
    for request in requests:
        core.submit(request)
    for step in range(1000):
        if not core.has_work():
            return ran
        if step == preempted_at_step:
            core.preempt(core.scheduler.running[0])
        first, captures = (len(gpu.waits), gpu.captures) if gpu else (0, 0)
        all_decode = len(ran.answers) == len(requests) and not has_ended
        for output in core.step():
            answer = ran.answers[output.request_id]
            answer.tokens += output.token_ids
            answer.logprobs += (*(output.prompt_logprobs or ()), *(output.logprobs or ()))
            has_ended |= output.finish_reason is not None
        core.scheduler.check()
        if gpu and all_decode and not has_ended and gpu.captures == captures:
            ran.steady.append(gpu.waits[first:])
    raise AssertionError("the engine does not come to an end")


def assert_same(got: dict[str, Answer], wanted: dict[str, Answer]) -> None:
    """Tokens are equal, and log-probabilities but for the order of sums."""
    assert {name: one.tokens for name, one in got.items()} == {
        name: one.tokens for name, one in wanted.items()
    }
    for name, answer in got.items():
        assert len(answer.tokens) >= MAX_TOKENS
        assert numbers_of(answer) == pytest.approx(numbers_of(wanted[name]), abs=1e-4)


def numbers_of(answer: Answer) -> list[float]:
    """Every token id and log-probability that was reported, in order."""
    return [
        number
        for one in answer.logprobs
        for number in (one.token_id, one.logprob, *chain.from_iterable(one.top))
    ]
