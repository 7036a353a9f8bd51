"""An engine on the shadow device whose device fails, and what it answers without a failure."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs, TargetForward
from specdecode_engine.startup.build import build_core
from tests.engine.whole_engine import boot_of, requests_of, run, tokens_of

CONTEXT = 64
MAX_TOKENS = 10


def boot_on(checkpoints: Any, device: str, mode: str, **sections: Any) -> EngineBoot:
    """EAGLE-3 with three draft steps; graphs of batch sizes 1, 2 and 4."""
    graphs = {"mode": mode, "batch_sizes": (1, 2, 4), **sections.pop("graphs", {})}
    document = boot_of(checkpoints, "EAGLE3", 1, graphs=graphs, **sections)
    document["model"]["context_length"] = CONTEXT
    return EngineBoot.model_validate(document | {"device": device})


def make_core(checkpoints: Any, device: str, mode: str, **sections: Any) -> EngineCore:
    return build_core(boot_on(checkpoints, device, mode, **sections))


def requests(vocab: int) -> list[Request]:
    """Three requests; the second samples."""
    return requests_of(vocab, 3, MAX_TOKENS)


def tokens_on_the_cpu(checkpoints: Any) -> dict[str, list[int]]:
    """What every engine has to answer."""
    core = make_core(checkpoints, "cpu", "off", attention_backend="torch")
    return tokens_of(run(core, requests(checkpoints.vocab)))


def greedy(request: Request) -> Request:
    sampling = SamplingParams(seed=0, max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    return replace(request, sampling=sampling)


def break_capture(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], number: int = 1
) -> None:
    """Raise in the target's forward from its `number`-th capture on."""
    call, captured = TargetForward.__call__, [0]

    def broken(self: TargetForward, inputs: ForwardInputs) -> ForwardOutputs:
        if torch.cuda.is_current_stream_capturing():
            captured[0] += 1
            if captured[0] >= number:
                raise error()
        return call(self, inputs)

    monkeypatch.setattr(TargetForward, "__call__", broken)
