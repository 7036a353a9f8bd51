"""Prompts that did not pass an unfit draft, and drafts that are exchanged, of every draft model."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafts_zoo.drafting import Drafted, record_drafts
from lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_health import DraftHealth, Fitness
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.draft_state import HiddenStateRing
from tests.engine.checkpoints import VOCAB, Checkpoints
from tests.engine.whole_engine import DRAFTS, boot_of

HEADS = sorted(set(DRAFTS) - {"STANDALONE"})
"""Algorithms whose drafts read hidden states, which are kept for prompts that are skipped."""
SHORT, LONG = 20, HiddenStateRing.kept + 30


def request(name: str, length: int) -> Request:
    prompt = tuple((7 * place + 3 * length) % VOCAB for place in range(length))
    return Request(name, prompt, SamplingParams(1, 16, 0.0, ignore_eos=True))


def build(checkpoints: Checkpoints, algorithm: str, topk: int = 1) -> EngineCore:
    return build_poisoned(EngineBoot.model_validate(boot_of(checkpoints, algorithm, topk)))


def run(core: EngineCore, *requests: Request, unfit_steps: int = 0) -> dict[str, list[int]]:
    """Decode; the draft is unfit before so many steps have passed."""
    health = core.scheduler.draft_health = DraftHealth()
    if unfit_steps:
        health.fitness = Fitness.UNFIT
    for one in requests:
        core.submit(one)
    tokens: dict[str, list[int]] = {one.request_id: [] for one in requests}
    steps = 0
    while core.has_work():
        if steps == unfit_steps:
            health.fitness = Fitness.UNKNOWN
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        core.scheduler.check()
        steps += 1
    return tokens


def by_text(drafts: list[Drafted]) -> dict[tuple[int, ...], Drafted]:
    return {one.committed: one for one in drafts}


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("algorithm", HEADS)
def test_a_skipped_prompt_is_drafted_after_as_one_that_passed(
    checkpoints: Checkpoints, algorithm: str, topk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft turns out to fit while a request decodes whose prompt it has not read."""
    requests = [request("short", SHORT), request("long", LONG)]
    read = build(checkpoints, algorithm, topk)
    expected_drafts = record_drafts(read)
    expected = run(read, *requests)
    core = build(checkpoints, algorithm, topk)
    drafter, drafts = core.context.drafter, record_drafts(core)
    assert drafter is not None
    with monkeypatch.context() as patched:
        patched.setattr(drafter, "prefill", None)
        assert run(core, *requests, unfit_steps=14) == expected
    assert drafts
    whole, found = by_text(expected_drafts), by_text(drafts)
    both = [text for text in found.keys() & whole.keys() if len(text) < LONG]
    assert both
    assert all(found[text] == whole[text] for text in both)
    # Of the long prompt the oldest rows cannot be computed; the text is right all the same.
    assert any(len(text) >= LONG for text in found)


@pytest.mark.parametrize("algorithm", HEADS)
def test_an_exchanged_draft_drafts_as_one_that_was_there_at_start(
    checkpoints: Checkpoints, algorithm: str, tmp_path: Path
) -> None:
    folder: Path = getattr(checkpoints, DRAFTS[algorithm])
    other = shutil.copytree(folder, tmp_path / "other")
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(other / "model.safetensors")
    noise = {
        name: one + 0.3 * torch.randn(one.shape, generator=generator).to(one.dtype)
        for name, one in tensors.items()
        if one.is_floating_point()
    }
    save_file({**tensors, **noise}, other / "model.safetensors")
    document = boot_of(checkpoints, algorithm, 1)
    document["speculation"]["draft_path"] = str(other)
    started = build_poisoned(EngineBoot.model_validate(document))
    wanted = record_drafts(started)
    texts = run(started, request("r", SHORT))
    core = build(checkpoints, algorithm)
    run(core, request("before", SHORT))
    assert core.stage_draft is not None
    core.stage_draft(other)()
    drafts = record_drafts(core)
    assert run(core, request("r", SHORT)) == texts
    assert drafts == wanted
