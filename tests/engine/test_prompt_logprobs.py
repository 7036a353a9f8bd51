"""Log-probabilities of prompts on a real core: the same however the prompt came to be computed."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import (
    FinishReason,
    Output,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.steps import logprobs as scoring

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
ALGORITHMS = ("NONE", "STANDALONE", "EAGLE3")
PROMPT = tuple((7 * place + place * place) % 97 for place in range(53))
Scores = tuple[TokenLogprobs, ...]


def make_core(
    checkpoints,
    algorithm: str = "NONE",
    chunk: int = 16,
    pool: int | None = None,
    **changes: object,
) -> EngineCore:
    speculation: dict[str, object] = {}
    if algorithm != "NONE":
        folder = {"STANDALONE": checkpoints.draft, "EAGLE3": checkpoints.eagle3}[algorithm]
        speculation = {
            "algorithm": algorithm, "draft_path": str(folder), "num_steps": 3, "topk": 2
        }  # fmt: skip
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": 4},
        "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": chunk, **changes},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document), pool)


def make_request(name: str = "r", prompt: tuple[int, ...] = PROMPT, **sampling: object) -> Request:
    params = {"seed": 5, "max_tokens": 6, "temperature": 0.0, "prompt_logprobs": 3, **sampling}
    return Request(name, prompt, SamplingParams(**params))  # type: ignore[arg-type]


def finish(core: EngineCore) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    while core.has_work():
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        core.scheduler.check()
    return outputs


def run(core: EngineCore, *requests: Request) -> dict[str, list[Output]]:
    for request in requests:
        core.submit(request)
    return finish(core)


def scores_of(outputs: list[Output]) -> Scores:
    """Return the prompt logprobs, which only the first output contains."""
    first, *others = [output.prompt_logprobs for output in outputs]
    assert first is not None
    assert all(later is None for later in others)
    return first


@pytest.fixture(scope="module")
def expected(checkpoints) -> Scores:
    """Plain decoding, the whole prompt at once."""
    return scores_of(run(make_core(checkpoints, chunk=512), make_request())["r"])


def test_they_are_those_of_transformers() -> None:
    """On the example target: values and the likeliest tokens."""
    document = {
        "model": {"path": str(EXAMPLES / "target"), "dtype": "float32"},
        "memory": {"kv_cache_bytes": 16 * 2**20},
        "scheduling": {"chunked_prefill_tokens": 48},
        "device": "cpu",
    }
    core = build_core(EngineBoot.model_validate(document))
    vocab = core.context.target.config.vocab_size
    prompt = tuple((31 * place + place * place) % vocab for place in range(150))
    scores = scores_of(run(core, make_request(prompt=prompt, prompt_logprobs=5))["r"])
    model = LlamaForCausalLM.from_pretrained(EXAMPLES / "target", dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, :-1]
    rows = torch.log_softmax(logits, dim=-1)
    assert [score.token_id for score in scores] == list(prompt[1:])
    values = torch.tensor([score.logprob for score in scores])
    own = rows.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    torch.testing.assert_close(values, own, atol=1e-4, rtol=0)
    top = torch.tensor([[value for _, value in score.top] for score in scores])
    torch.testing.assert_close(top, rows.topk(5).values, atol=1e-4, rtol=0)
    named = torch.tensor([[token for token, _ in score.top] for score in scores])
    torch.testing.assert_close(rows.gather(1, named), top, atol=1e-4, rtol=0)


def test_they_are_those_of_an_answer_with_the_same_text(checkpoints) -> None:
    """Generate 30 tokens, then give them as a prompt."""
    core = make_core(checkpoints, "EAGLE3")
    request = make_request(prompt=PROMPT[:9], max_tokens=30, logprobs=2, ignore_eos=True)
    outputs = run(core, request)["r"]
    answer = tuple(token for output in outputs for token in output.token_ids)
    records = [record for output in outputs for record in output.logprobs or ()]
    scores = scores_of(run(core, make_request(prompt=PROMPT[:9] + answer, prompt_logprobs=2))["r"])
    assert list(scores[8:]) == records


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 16, 512])
def test_chunks_schedules_and_drafts_change_nothing(
    checkpoints, expected: Scores, algorithm: str, overlap: bool, chunk: int
) -> None:
    core = make_core(checkpoints, algorithm, chunk, overlap=overlap)
    beside = [
        make_request("short", PROMPT[:2], prompt_logprobs=0),
        make_request("silent", PROMPT[:20], prompt_logprobs=None),
        make_request("one", PROMPT[:1]),
    ]
    outputs = run(core, beside[0], make_request(), *beside[1:])
    assert scores_of(outputs["r"]) == expected
    (short,) = scores_of(outputs["short"])
    assert (short.token_id, short.logprob, short.top) == (PROMPT[1], expected[0].logprob, ())
    assert scores_of(outputs["one"]) == ()
    assert all(output.prompt_logprobs is None for output in outputs["silent"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("step", range(1, 12, 2))
def test_a_retraction_at_any_step_loses_and_repeats_nothing(
    checkpoints, expected: Scores, algorithm: str, overlap: bool, step: int
) -> None:
    """The first steps are in the middle of the prompt, the last ones in the answer."""
    core = make_core(checkpoints, algorithm, chunk=9, overlap=overlap)
    core.submit(make_request(max_tokens=40, ignore_eos=True))
    early = [output for _ in range(step) for output in core.step()]
    running = core.scheduler.running
    assert running
    core.preempt(running[0])
    outputs = early + finish(core)["r"]
    assert scores_of(outputs) == expected
    assert sum(len(output.token_ids) for output in outputs) == 40


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_that_push_each_other_out_get_everything_once(
    checkpoints, expected: Scores, overlap: bool
) -> None:
    core = make_core(checkpoints, "EAGLE3", chunk=16, pool=140, overlap=overlap)
    names = [str(number) for number in range(5)]
    outputs = run(core, *(make_request(n, max_tokens=60, ignore_eos=True) for n in names))
    assert core.scheduler.preempted_total > 0
    assert all(scores_of(outputs[name]) == expected for name in names)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cached_prompt_is_computed_anew_where_it_is_scored(
    checkpoints, expected: Scores, algorithm: str
) -> None:
    core = make_core(checkpoints, algorithm)
    silent = run(core, make_request(prompt_logprobs=None))["r"]
    assert silent[0].prompt_logprobs is None
    cached = core.scheduler.cache.pages
    assert cached > 0
    assert scores_of(run(core, make_request())["r"]) == expected
    assert core.scheduler.cache.hit_tokens == 0
    assert core.scheduler.cache.pages == cached
    run(core, make_request(prompt_logprobs=None))
    assert core.scheduler.cache.hit_tokens > 0


def test_a_scored_prompt_may_be_taken_from_the_cache_after_a_retraction(checkpoints) -> None:
    core = make_core(checkpoints)
    core.submit(make_request(max_tokens=12, ignore_eos=True))
    for _ in range(6):
        core.step()
    core.preempt(core.scheduler.running[0])
    finish(core)
    assert core.scheduler.cache.hit_tokens == len(PROMPT) // 4 * 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("overlap", [False, True])
def test_an_answer_of_no_tokens_is_the_prompts_scores(
    checkpoints, expected: Scores, algorithm: str, overlap: bool
) -> None:
    core = make_core(checkpoints, algorithm, overlap=overlap)
    stop = frozenset(range(97))
    outputs = run(core, make_request(max_tokens=0, stop_token_ids=stop, logprobs=1))["r"]
    (output,) = outputs
    assert scores_of(outputs) == expected
    assert (output.token_ids, output.logprobs) == ((), ())
    assert output.finish_reason is FinishReason.LENGTH
    assert core.counters.decode.steps == 0


def test_a_prompt_of_the_whole_context_can_be_scored(checkpoints) -> None:
    core = make_core(checkpoints, "EAGLE3", chunk=100)
    prompt = tuple(place % 97 for place in range(core.context_length))
    scores = scores_of(run(core, make_request(prompt=prompt, max_tokens=0))["r"])
    assert len(scores) == core.context_length - 1


def test_logits_exist_for_a_piece_at_a_time(
    checkpoints, expected: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 5 rows: the model is asked for no more at once, and the values stay."""
    monkeypatch.setattr(scoring, "PIECE_ROWS", 5)
    core = make_core(checkpoints, chunk=512)
    asked: list[int] = []
    logits = type(core.context.target).logits

    def count(self: object, hidden: torch.Tensor) -> torch.Tensor:
        asked.append(len(hidden))
        return logits(self, hidden)  # type: ignore[arg-type]

    monkeypatch.setattr(type(core.context.target), "logits", count)
    assert scores_of(run(core, make_request(max_tokens=1))["r"]) == expected
    assert asked == [1] + [5] * 10 + [2]


def test_nobody_pays_for_scores_that_nobody_asked_for(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(checkpoints, chunk=512)
    asked: list[int] = []
    logits = type(core.context.target).logits

    def count(self: object, hidden: torch.Tensor) -> torch.Tensor:
        asked.append(len(hidden))
        return logits(self, hidden)  # type: ignore[arg-type]

    monkeypatch.setattr(type(core.context.target), "logits", count)
    run(core, make_request(max_tokens=1, prompt_logprobs=None))
    assert asked == [1]


def test_an_aborted_request_gets_nothing(checkpoints) -> None:
    core = make_core(checkpoints, chunk=9, overlap=True)
    core.submit(make_request())
    for _ in range(3):
        core.step()
    core.abort("r")
    assert finish(core) == {}
