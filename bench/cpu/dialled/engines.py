"""The engines that are compared, and how they answer."""

from collections.abc import Sequence
from pathlib import Path

from checks.harness.role import spread
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

NONE, EAGLE3, DFLASH = "NONE", "EAGLE3", "DFLASH"
BATCH_SIZES = (1, 2, 4, 8)
Tokens = Sequence[int]


def build(
    target: Path, algorithm: str, head: Path | None, num_steps: int | None = None
) -> EngineCore:
    """Build an engine of one thread; None: it chooses its draft steps by goodput."""
    speculation: dict[str, object] = {"algorithm": algorithm}
    if head is not None:
        steps = {"policy": "goodput"} if num_steps is None else {"num_steps": num_steps}
        speculation |= {"draft_path": str(head), **steps}
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation,
        "scheduling": {"max_running_requests": max(BATCH_SIZES)},
        "memory": {"prefix_cache": False},
        "device": "cpu",
        "threads": 1,
    }
    return build_core(EngineBoot.model_validate(document))


def answer(
    core: EngineCore, prompts: Sequence[Tokens], tokens: int, *, ignore_eos: bool = True
) -> list[Tokens]:
    """Answer all prompts at once."""
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        params = SamplingParams(0, tokens, 0.0, ignore_eos=ignore_eos)
        core.submit(Request(str(number), tuple(prompt), params))
        answers[str(number)] = []
    while core.has_work():
        for output in core.step():
            answers[output.request_id] += output.token_ids
    return list(answers.values())


def ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the least, the median and the greatest of the ratios of pairs."""
    return spread([a / b for a, b in zip(own, other, strict=True)])
