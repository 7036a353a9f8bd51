"""Prompts that did not pass an unfit draft, and drafts that are exchanged, of every draft model."""

import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.drafts_zoo.drafting import record_drafts
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.adaptive.draft_health import DraftHealth
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.draft_state import KEPT_ROWS
from tests.engine.checkpoints import VOCAB, Checkpoints
from tests.engine.whole_engine import DRAFTS, boot_of

MODELS = sorted(DRAFTS)
HEADS = sorted(set(DRAFTS) - {"STANDALONE"})
SHORT, LONG = 20, KEPT_ROWS + 30


def request(name: str, length: int) -> Request:
    prompt = tuple((7 * place + 3 * length) % VOCAB for place in range(length))
    return Request(name, prompt, SamplingParams(1, 16, 0.0, ignore_eos=True))


def build(checkpoints: Checkpoints, algorithm: str, topk: int = 1) -> EngineCore:
    return build_poisoned(EngineBoot.model_validate(boot_of(checkpoints, algorithm, topk)))


def run(core: EngineCore, *requests: Request, unfit_steps: int = 0) -> dict[str, list[int]]:
    """Decode; the draft is unfit before so many steps have passed."""
    health = core.scheduler.drafting.health = DraftHealth()
    if unfit_steps:
        health.is_unfit = True
    for one in requests:
        core.submit(one)
    tokens: dict[str, list[int]] = {one.request_id: [] for one in requests}
    steps = 0
    while core.has_work():
        if steps == unfit_steps:
            health.is_unfit = False
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        core.scheduler.check()
        steps += 1
    return tokens


@pytest.mark.parametrize(
    ("algorithm", "topk"),
    [
        (name, topk)
        for name, topk in product(MODELS, (1, 3))
        if Algorithm(name).drafts_trees or topk == 1
    ],
)
def test_a_draft_that_turns_out_to_fit_drafts_after_what_it_has_not_read(
    checkpoints: Checkpoints, algorithm: str, topk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short and long prompts that it skipped; a later request drafts as if nothing had been."""
    requests = [request("short", SHORT), request("long", LONG)]
    read = build(checkpoints, algorithm, topk)
    expected = run(read, *requests)
    wanted = record_drafts(read)
    later = run(read, request("later", SHORT + 1))
    core = build(checkpoints, algorithm, topk)
    drafter, drafts = core.context.drafter, record_drafts(core)
    assert drafter is not None
    with monkeypatch.context() as patched:
        patched.setattr(drafter, "prefill", None)
        assert run(core, *requests, unfit_steps=14) == expected
    lengths = {len(one.committed) for one in drafts}
    assert min(lengths) < LONG <= max(lengths)
    drafts.clear()
    assert run(core, request("later", SHORT + 1)) == later
    assert drafts == wanted


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
    for piece in core.stage_draft(other):
        piece()
    drafts = record_drafts(core)
    assert run(core, request("r", SHORT)) == texts
    assert drafts == wanted
