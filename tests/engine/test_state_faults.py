"""A wrong way of accepted drafts into the states of recurrent layers changes texts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from checks.lossless.families import RECURRENT, make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.kv.delta_states import DeltaStates
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import boot_of, run

Keep = Callable[[DeltaStates, Tensor, Tensor | None, Tensor], None]

MAX_TOKENS = 40
plainly = DeltaStates.keep


def drop_accepted(states: DeltaStates, slots: Tensor, path: Tensor | None, _: Tensor) -> None:
    """Leave every state as the root of its draft left it."""


def keep_rejected(
    states: DeltaStates, slots: Tensor, path: Tensor | None, accepted: Tensor
) -> None:
    """Fold one node more than was accepted, where the draft has one."""
    most = states.state.drafted.shape[2] if path is None else path.shape[1] - 1
    plainly(states, slots, path, (accepted + 1).clamp(max=most))


def keep_of_neighbour(
    states: DeltaStates, slots: Tensor, path: Tensor | None, accepted: Tensor
) -> None:
    """Fold the accepted nodes of each request into the state of the next one."""
    plainly(states, slots.roll(1), path, accepted)


def repeating_requests() -> list[Request]:
    """Prompts that repeat few tokens, which the answers are drawn towards: NGRAM finds them."""
    sampling = SamplingParams(
        0, MAX_TOKENS, 0.0, ignore_eos=True, logit_bias=dict.fromkeys(range(7), 9.0)
    )
    prompts = [tuple(place * step % 7 for place in range(30)) for step in range(1, 6)]
    return [Request(str(at), prompt, sampling) for at, prompt in enumerate(prompts)]


@pytest.mark.parametrize("fault", [drop_accepted, keep_rejected, keep_of_neighbour])
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("family", RECURRENT)
def test_a_planted_fault_changes_a_text(
    family: str,
    topk: int,
    fault: Keep,
    checkpoints: Checkpoints,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("faults") / "target"
    models = replace(checkpoints, target=make_family(family, checkpoints.target, folder))
    requests = repeating_requests()
    plain = run(_core(models, "NONE", 1), requests)
    assert run(_core(models, "NGRAM", topk), requests) == plain
    monkeypatch.setattr(DeltaStates, "keep", fault)
    core = _core(models, "NGRAM", topk)
    assert run(core, requests) != plain
    assert core.counters.decode.accepted_tokens > 0


def _core(models: Checkpoints, algorithm: str, topk: int) -> EngineCore:
    boot = boot_of(models, algorithm, topk, num_steps=4, memory={"page_size": 4})
    return build_poisoned(EngineBoot.model_validate(boot))
