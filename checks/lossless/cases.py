"""What a case is made of, drawn from a seed: requests, arrivals, and the engine they run on."""

import random
from dataclasses import dataclass, replace
from typing import Any

from checks.lossless.families import LLAMA
from specdecode_api.speculation import max_tree_tokens
from specdecode_engine.batch.request import SamplingParams, TokenLogprobs
from specdecode_engine.grammar import Grammar
from specdecode_kernels.cpu.tuning import Tuning

QUANTIZATIONS = (
    "auto", "auto", "int8", "int4", "w8a16", "w4a16", "w8a16-zeros", "w4a16-actorder",
    "float8", "mxfp4", "nvfp4",
)  # fmt: skip
SUM_ORDERS = ("inputs", "blocks32", "blocks32")
ALGORITHMS = ("STANDALONE", "EAGLE", "EAGLE3", "NGRAM")
MODULES = 4
"""Of MTP_CHAIN, which drafts chains alone: as many draft steps at most."""

LONG_TOKENS = 240
"""Of an answer with long texts, at most."""


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """One request of a case."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    arrives_at_step: int
    aborted_at_step: int | None
    grammar: Grammar | None = None
    max_steps: int | None = None
    begun: tuple[int, ...] = ()  # tokens of the answer that another engine has generated
    begun_logprobs: tuple[TokenLogprobs, ...] = ()
    queue_order: int = 0
    cache_salt: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """Requests that run together, and the engine's settings."""

    number: int
    family: str  # of the target, and of a STANDALONE draft
    algorithm: str
    num_steps: int
    topk: int
    num_draft_tokens: int | None
    policy: str
    profile_seconds: float
    table: tuple[tuple[int, tuple[int, ...]], ...]
    page_size: int
    chunk_tokens: int
    max_running: int
    pool_tokens: int
    overlap: bool
    prefix_cache: bool
    switches_num_steps: bool  # at every step, at random
    draws_verify_rows: bool  # for every request and step, at random
    preempted_at_steps: tuple[int, ...]
    requests: tuple[CaseRequest, ...]
    graphs: str  # off or static
    graph_batch_sizes: tuple[int, ...] | None
    graph_max_bytes: int | None
    graph_max_seconds: float
    ngram: tuple[tuple[str, object], ...]  # settings of algorithm or fallback NGRAM
    tuning: Tuning  # of linear maps on a CPU
    quantization: str  # of weights: what they are rounded to, or one of `PUBLISHED`
    has_fallback: bool  # whether NGRAM drafts next to a draft model
    draws_sources: bool  # which of the two a request verifies, at random in every step
    verify_tokens: int | None = None  # of a request on average, in every range of the table
    sum_order: str = "inputs"  # of linear maps of rows of bfloat16 on a CPU
    adapted: bool = False  # whether the engine has LoRA adapters


@dataclass(frozen=True, slots=True)
class Material:
    """What requests are made from."""

    prompts: tuple[tuple[int, ...], ...]
    vocab: int
    grammars: tuple[Grammar, ...] = ()
    long_grammars: tuple[Grammar, ...] = ()
    families: tuple[str, ...] = (LLAMA,)
    algorithms: tuple[str, ...] = ALGORITHMS


def draw_case(number: int, seed: int, material: Material) -> Case:
    """Draw case `number` of a run; the same numbers give the same case."""
    rng = random.Random(f"{seed}/{number}")
    requests = tuple(_draw_request(rng, material) for _ in range(rng.choice((1, 1, 2, 3, 5, 8))))
    requests = _with_extremes(random.Random(f"{seed}/{number}/extremes"), requests, material.vocab)
    requests = _with_long_texts(random.Random(f"{seed}/{number}/long"), requests, material)
    longest = max(len(r.prompt_ids) + r.sampling.max_tokens for r in requests)
    num_steps = rng.choice((0, 1, 2, 3, 3, 4, 5, 7, 9))
    topk = rng.choice((1, 1, 2, 3, 4, 8, 16))
    policy = rng.choice(("static", "ema", "goodput"))
    case = Case(
        number=number,
        family=rng.choice(material.families),
        algorithm=rng.choice(material.algorithms),
        num_steps=num_steps,
        topk=topk if num_steps else 1,
        num_draft_tokens=_draw_width(rng, num_steps, topk),
        policy=policy,
        profile_seconds=rng.choice((0.0, 0.0, 0.1)),
        table=_draw_table(rng, num_steps, policy != "static"),
        page_size=rng.choice((1, 2, 4, 8, 16, 32, 64, 128)),
        chunk_tokens=rng.choice((1, 3, 7, 16, 64, 512)),
        max_running=rng.choice((1, 2, 4, 8)),
        pool_tokens=longest + rng.choice((0, 8, 40, 4000)),
        overlap=rng.random() < 0.5,
        prefix_cache=rng.random() < 0.8,
        switches_num_steps=rng.random() < 0.3,
        draws_verify_rows=rng.random() < 0.6,
        preempted_at_steps=tuple(sorted(rng.sample(range(2, 30), rng.choice((0, 0, 1, 3))))),
        requests=requests,
        graphs=rng.choice(("off", "static", "static")),
        graph_batch_sizes=_draw_batch_sizes(rng),
        graph_max_bytes=rng.choice((None, None, None, 128 << 10, 384 << 10)),
        graph_max_seconds=rng.choice((120.0, 120.0, 0.0)),
        ngram=_draw_ngram(rng),
        tuning=Tuning.draw(rng),
        quantization=rng.choice(QUANTIZATIONS),
        has_fallback=rng.random() < 0.4,
        draws_sources=rng.random() < 0.6,
        sum_order=random.Random(f"{seed}/{number}/sums").choice(SUM_ORDERS),
    )
    if case.algorithm == "NGRAM":
        return replace(case, has_fallback=False)
    case = replace(case, verify_tokens=_draw_verify_tokens(rng, case))
    return case if case.algorithm != "MTP_CHAIN" else as_chain(with_most_steps(case, MODULES))


def _draw_verify_tokens(rng: random.Random, case: Case) -> int | None:
    """Draw how much is verified where a draft model drafts alone."""
    drawn = rng.choice((None, 1, 1, 2, 3))
    if case.topk > 1 and drawn is not None:
        drawn *= rng.choice((1, 2, 4))
    is_divided = not case.has_fallback and case.policy != "ema" and case.table
    return drawn if is_divided else None


def as_chain(case: Case) -> Case:
    """Draft chains alone."""
    return replace(case, topk=1, num_draft_tokens=None)


def with_most_steps(case: Case, most: int) -> Case:
    """Draft at most so many steps."""
    if case.num_steps <= most and all(max(steps) <= most for _, steps in case.table):
        return case
    table = tuple(
        (bound, tuple(sorted({min(one, most) for one in steps}))) for bound, steps in case.table
    )
    return replace(case, num_steps=min(case.num_steps, most), num_draft_tokens=None, table=table)


def _draw_ngram(rng: random.Random) -> tuple[tuple[str, object], ...]:
    """Any source; mostly short matches, so that drafts are often wrong, and little memory."""
    source = rng.choice(("suffix", "prompt", "trie"))
    return (
        ("source", source),
        ("scope", "request" if source == "prompt" else rng.choice(("request", "model"))),
        ("max_depth", rng.choice((None, 2, 5, 12))),
        ("min_match", rng.choice((1, 1, 2))),
        ("match", rng.choice(("BFS", "PROB"))),
        ("capacity", rng.choice((1, 30, 1000, 1_000_000))),
        ("max_spec_factor", rng.choice((1.0, 4.0))),
    )


def _draw_width(rng: random.Random, num_steps: int, topk: int) -> int | None:
    """A tree's number of nodes, anywhere in its bounds; half of the time the usual one."""
    if topk == 1 or num_steps == 0 or rng.random() < 0.5:
        return None
    return rng.randint(2, min(max_tree_tokens(topk, num_steps), 64))


def _draw_table(
    rng: random.Random, num_steps: int, is_adaptive: bool
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Half of the static cases change their depth with the batch size; adaptive ones may always."""
    if not is_adaptive and rng.random() < 0.5:
        return ()
    others = (0, 0, 1, 2, 6)
    wide = rng.sample(others, 3) if is_adaptive else []
    ranges = [(1, tuple(sorted({num_steps, *wide})))]
    for bound in sorted(rng.sample((2, 3, 4, 6), rng.randint(1, 3))):
        wide = rng.sample(others, rng.randint(0, 2)) if is_adaptive else []
        ranges.append((bound, tuple(sorted({rng.choice(others), *wide}))))
    return tuple(ranges)


def _draw_batch_sizes(rng: random.Random) -> tuple[int, ...] | None:
    """The engine's own sizes, or any: batches are then padded by much, or larger than all."""
    if rng.random() < 0.4:
        return None
    return tuple(rng.sample((1, 2, 3, 4, 6, 8), rng.randint(1, 3)))


def _draw_request(rng: random.Random, material: Material) -> CaseRequest:
    sampling = _draw_sampling(rng, material.vocab)
    aborted = rng.random() < 0.08
    grammar = _draw_grammar(rng, material)
    if grammar is None:
        sampling = _with_token_rules(rng, sampling, material.vocab)
    elif rng.random() < 0.5:  # enough for calls and reasoning to end
        sampling = replace(sampling, max_tokens=128, ignore_eos=False)
    return CaseRequest(
        prompt_ids=_draw_prompt(rng, material),
        sampling=sampling,
        arrives_at_step=rng.choice((0, 0, 0, 1, 3, 9)),
        aborted_at_step=rng.randint(1, 12) if aborted else None,
        grammar=grammar,
        max_steps=rng.choice((None, None, None, 0, 1, 2, 5)),
        queue_order=rng.choice((0, 0, 0, -1, 1)),
        cache_salt=rng.choice(("", "", "a")),
    )


def _draw_grammar(rng: random.Random, material: Material) -> Grammar | None:
    """A third of the requests are constrained by a grammar."""
    return rng.choice(material.grammars) if material.grammars and rng.random() < 0.33 else None


def _draw_prompt(rng: random.Random, material: Material) -> tuple[int, ...]:
    kind = rng.random()
    if kind < 0.65:
        return rng.choice(material.prompts)
    if kind < 0.8:
        return tuple(rng.randrange(material.vocab) for _ in range(rng.randint(1, 40)))
    if kind < 0.9:
        return (rng.randrange(material.vocab),)
    return rng.choice(material.prompts) * rng.randint(2, 5)


def _draw_sampling(rng: random.Random, vocab: int) -> SamplingParams:
    is_sampled = rng.random() < 0.5
    return SamplingParams(
        seed=rng.choice((0, 1, -5, 2**63, rng.getrandbits(64))),
        max_tokens=rng.choice((0, 1, 2, 3, 7, 16, 16, 33, 33, 48)),
        temperature=rng.uniform(0.05, 1.6) if is_sampled else 0.0,
        top_p=rng.choice((1.0, 1.0, 0.95, 0.5)),
        top_k=rng.choice((0, 0, 1, 5, 50)),
        min_p=rng.choice((0.0, 0.0, 0.05, 0.3)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.1, 1.8)),
        presence_penalty=rng.choice((0.0, 0.0, 0.6, -0.7)),
        frequency_penalty=rng.choice((0.0, 0.0, 0.4, 1.5)),
        logit_bias=_draw_bias(rng, vocab),
        stop_token_ids=frozenset(rng.sample(range(vocab), rng.choice((0, 0, 1, 40)))),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice((None, None, 0, 3)),
        prompt_logprobs=rng.choice((None, None, None, None, None, None, 0, 3)),
    )


def _with_token_rules(rng: random.Random, sampling: SamplingParams, vocab: int) -> SamplingParams:
    """Draw what a request with a grammar may not have."""
    words = tuple(
        tuple(rng.randrange(vocab) for _ in range(rng.choice((1, 1, 2, 3))))
        for _ in range(rng.choice((0, 0, 0, 1, 12, 40)))
    )
    allowed = None
    if rng.random() < 0.15:
        allowed = frozenset(rng.sample(range(vocab), vocab - vocab // rng.choice((2, 3, 9))))
    least = rng.choice((0, 0, 0, 1, 4, 12))
    return replace(sampling, min_tokens=least, bad_words=words, allowed_token_ids=allowed)


def _with_long_texts(
    rng: random.Random, requests: tuple[CaseRequest, ...], material: Material
) -> tuple[CaseRequest, ...]:
    """Let a third of the constrained requests write long texts."""

    def change(request: CaseRequest) -> CaseRequest:
        if request.grammar is None or not material.long_grammars or rng.random() > 0.33:
            return request
        sampling = replace(request.sampling, max_tokens=rng.choice((120, LONG_TOKENS)))
        return replace(request, sampling=sampling, grammar=rng.choice(material.long_grammars))

    return tuple(map(change, requests))


def _with_extremes(
    rng: random.Random, requests: tuple[CaseRequest, ...], vocab: int
) -> tuple[CaseRequest, ...]:
    """Give some requests one parameter at an end of its range; other cases stay as they were."""
    extremes: tuple[dict[str, Any], ...] = (
        {"temperature": 1e-5},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_k": 2**31 - 1},
        {"temperature": 1.0, "min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 10.0},
        {"presence_penalty": -2.0, "frequency_penalty": -2.0},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"logit_bias": {vocab - 1: 100.0}},
        {"stop_token_ids": frozenset((vocab - 1, vocab, 2**31 - 1))},
    )
    return tuple(
        replace(each, sampling=replace(each.sampling, **rng.choice(extremes)))
        if rng.random() < 0.15
        else each
        for each in requests
    )


def _draw_bias(rng: random.Random, vocab: int) -> dict[int, float]:
    if rng.random() < 0.7:
        return {}
    tokens = rng.sample(range(vocab), rng.randint(1, 20))
    return {token: rng.choice((-100.0, -3.0, 2.5, 9.0)) for token in tokens}
