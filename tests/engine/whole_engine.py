"""A whole engine on the tiny checkpoints, and requests that meet all of it."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from specdecode_engine.batch.request import ExpertIds, Request, SamplingParams, TokenLogprobs
from specdecode_engine.engine import EngineCore

DRAFTS = {
    "STANDALONE": "draft",
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "MTP": "mtp",
    "MTP_CHAIN": "mtp_chain",
    "FROZEN_KV_MTP": "frozen_kv_mtp",
    "DFLASH": "dflash",
    "DSPARK": "dspark",
    "PEAGLE": "peagle",
}


def boot_of(
    checkpoints, algorithm: str, topk: int, *, num_steps: int = 3, **sections: Any
) -> dict[str, Any]:
    """A boot file's document; `sections` are added to its own."""
    speculation: dict[str, object] = {}
    if algorithm != "NONE":
        speculation = {"algorithm": algorithm, "num_steps": num_steps, "topk": topk}
        if algorithm in DRAFTS:  # NGRAM has none
            speculation["draft_path"] = str(getattr(checkpoints, DRAFTS[algorithm]))
    return {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": speculation,
        "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 12},
        "device": "cpu",
        **sections,
    }


def requests_of(vocab: int, count: int, max_tokens: int) -> list[Request]:
    """Prompts that begin the same, every other request sampled with penalties and filters."""
    start = tuple(place * 7 % vocab for place in range(18))
    requests = []
    for number in range(count):
        is_sampled = bool(number % 2)
        sampling = SamplingParams(
            seed=number,
            max_tokens=max_tokens,
            temperature=0.8 * is_sampled,
            top_k=12 * is_sampled,
            repetition_penalty=1.2 if is_sampled else 1.0,
            ignore_eos=True,
            logprobs=2,
        )
        tail = tuple((number * 31 + place) % vocab for place in range(1 + 3 * number))
        requests.append(Request(str(number), start + tail, sampling))
    return requests


@dataclass(slots=True)
class Answer:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    routed_experts: list[ExpertIds] = field(default_factory=list)


def run(
    core: EngineCore, requests: list[Request], preempted_at_step: int | None = None
) -> dict[str, Answer]:
    """Run requests together.

    Args:
        retracted_at_step: the step at which a running request is preempted and recomputed.
    """
    answers: dict[str, Answer] = defaultdict(Answer)
    for request in requests:
        core.submit(request)
    step = 0
    while core.has_work():
        if step == preempted_at_step:
            core.preempt(core.scheduler.running[0])
        for output in core.step():
            answers[output.request_id].tokens += output.token_ids
            answers[output.request_id].logprobs += output.logprobs or ()
        core.scheduler.check()
        step += 1
    return answers


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    """The tokens alone."""
    return {name: answer.tokens for name, answer in answers.items()}
