"""A target that answers with a given text, whatever it is asked: its forwards are computed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.startup.build import build_core

MAX_RUNNING = 8


class ScriptedSampler:
    """Samples as the engine's sampler does, and returns the text's next tokens instead.

    All requests have the same text. Without overlap: the host knows every token that was committed.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core, self._sampler = core, core.context.sampler
        self.text: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(self, logits: Tensor, sampling: SamplingBatch, *rest: Any) -> Tensor:
        """Return the text's tokens [B, N] i64 after the nodes of chains."""
        tokens = self._sampler.sample(logits, sampling, *rest)
        known = {one.req_index: len(one.tokens) for one in self._core.scheduler.running}
        firsts = [known[req_index] for req_index in sampling.req_indices]
        width = tokens.shape[1]
        rows = [self.text[first : first + width] for first in firsts]
        return torch.tensor([row + (0,) * (width - len(row)) for row in rows])


def build_scripted(
    target: Path, speculation: Mapping[str, object]
) -> tuple[EngineCore, ScriptedSampler]:
    """Build an engine on one thread that answers with a given text."""
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation,
        "scheduling": {
            "max_running_requests": MAX_RUNNING,
            "overlap": False,
            "chunked_prefill_tokens": 4096,  # of all requests in one step: they decode together
        },
        "memory": {"prefix_cache": False},
        "device": "cpu",
        "threads": 1,
    }
    core = build_core(EngineBoot.model_validate(document))
    return core, script(core)


def script(core: EngineCore) -> ScriptedSampler:
    """Let an engine answer with `text` of what is returned."""
    sampler = ScriptedSampler(core)
    core.context = replace(core.context, sampler=cast(Sampler, sampler))
    return sampler


def submit(
    core: EngineCore, sampler: ScriptedSampler, text: tuple[int, ...], prompt: int, count: int = 1
) -> None:
    """Begin to decode a text from its first `prompt` tokens on, in each of `count` requests."""
    sampler.text = text
    params = SamplingParams(0, len(text) - prompt, 0.0, ignore_eos=True)
    for number in range(count):
        core.submit(Request(f"scripted-{number}", text[:prompt], params))


def answer(core: EngineCore, sampler: ScriptedSampler, text: tuple[int, ...], prompt: int) -> None:
    """Decode a text from its first `prompt` tokens on."""
    submit(core, sampler, text, prompt)
    received = list[int]()
    while core.has_work():
        for output in core.step():
            received += output.token_ids
    assert tuple(received) == text[prompt:], "the script was not followed"
