"""Serves the example pair with a draft, damaged or not, and reads what the engine learned of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import AutoTokenizer

from checks.detection.damage import HEAD_DAMAGE, write_damaged
from checks.lossless.prompts import load_prompts
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.adaptive.draft_health import DraftReport
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts.eagle import Eagle3Head
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.draft_methods.registry import METHODS
from specdecode_engine.startup.draft_methods.token_by_token import TokenByToken

EXAMPLES = Path(__file__).parents[2] / "examples/models"
SOUND = "none"


@contextmanager
def served_with(
    damage: str, folder: Path, boot: dict[str, Any] | None = None, **speculation: Any
) -> Iterator[EngineCore]:
    """Build an engine whose EAGLE-3 head is damaged, or not for `SOUND`.

    Args:
        boot: other parts of the boot file.
        speculation: fields of that part.
    """
    draft = write_damaged(damage, EXAMPLES / "eagle3", folder)
    settings = EngineBoot.model_validate(
        {
            **served_boot(),
            "speculation": {
                "algorithm": "EAGLE3",
                "draft_path": str(draft),
                "num_steps": 2,
                "profile_seconds": 0.1,
                **speculation,
            },
            **(boot or {}),
        }
    )
    damaged = {Algorithm.EAGLE3: TokenByToken(HEAD_DAMAGE.get(damage, Eagle3Head))}
    with mock.patch.dict(METHODS, damaged):
        yield build_core(settings)


def served_boot() -> dict[str, Any]:
    """The boot file of the target alone."""
    return {
        "model": {"path": str(EXAMPLES / "target"), "dtype": "float32"},
        "scheduling": {"max_running_requests": 8},
        "device": "cpu",
        "threads": 1,
    }


def draft_of(core: EngineCore) -> DraftReport:
    """What the engine knows of its draft."""
    report = core.snapshot().draft
    assert report is not None, "the draft is tested"
    return report


def example_requests(
    count: int, max_tokens: int = 24, temperature: float = 0.0, first: int = 0
) -> list[Request]:
    """The held-out prompts of the examples from `first`, in turns where they are too few."""
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    prompts = load_prompts(EXAMPLES, tokenizer)
    return [
        Request(
            str(number),
            prompts[number % len(prompts)],
            SamplingParams(number, max_tokens, temperature, ignore_eos=True),
        )
        for number in range(first, first + count)
    ]


def random_requests(count: int, max_tokens: int = 24, temperature: float = 1.0) -> list[Request]:
    """Prompts of six tokens without sense, which no template continues."""
    return [
        Request(
            str(number),
            tuple((number * 37 + place * 101) % 1000 + 3 for place in range(6)),
            SamplingParams(number, max_tokens, temperature, ignore_eos=True),
        )
        for number in range(count)
    ]


def run_all(core: EngineCore, requests: list[Request]) -> dict[str, tuple[int, ...]]:
    """Run requests together; return the tokens of each."""
    tokens: dict[str, tuple[int, ...]] = {each.request_id: () for each in requests}
    for each in requests:
        core.submit(each)
    while core.has_work():
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    return tokens
