"""A running engine takes another draft: text stays, figures start over, bad files are refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.detection.damage import write_damaged
from checks.detection.served import EXAMPLES, draft_of, example_requests, run_all, served_with
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_health import Fitness
from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.record_tensors import named_tensors
from specdecode_engine.model.drafts import draft_exchange
from specdecode_engine.model.layers import repeated_weights
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.draft_staging import DraftStaging
from specdecode_kernels.cpu import packing
from tests.engine.live_bytes import LiveBytes, TorchMemory
from tests.engine.whole_engine import DRAFTS, boot_of, requests_of, run, tokens_of

SOUND = EXAMPLES / "eagle3"
SHARED = ("embed_tokens", "lm_head", "d2t", "t2d", "shared_head.head")


def reweighted(folder: Path, to: Path) -> Path:
    """Copy a checkpoint with noise in all weights that are its own."""
    shutil.copytree(folder, to)
    generator = torch.Generator().manual_seed(9)
    tensors = load_file(to / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not any(part in name for part in SHARED):
            tensors[name] = tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    return to


def exchange(core: EngineCore, folder: Path) -> None:
    assert core.stage_draft is not None
    for piece in core.stage_draft(folder):
        piece()


def weights_of(core: EngineCore) -> dict[str, torch.Tensor]:
    """A copy of every tensor of the running draft."""
    assert isinstance(core.stage_draft, DraftStaging)
    return {name: tensor.clone() for name, tensor in named_tensors(core.stage_draft.models.draft)}


def edited(tmp_path: Path, edit) -> Path:
    """A copy of the sound head with other tensors."""
    folder = tmp_path / "edited"
    folder.mkdir()
    tensors = load_file(SOUND / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(SOUND / "config.json", folder)
    return folder


def accept_length(core: EngineCore, count: int) -> float:
    before = core.counters.decode
    run_all(core, example_requests(count, max_tokens=16))
    after = core.counters.decode
    steps = after.request_steps - before.request_steps
    return (after.emitted_tokens - before.emitted_tokens) / steps


@pytest.mark.parametrize("policy", ["static", "ema", "goodput"])
def test_drafts_are_exchanged_under_load_and_no_text_changes(tmp_path, policy):
    """Every few steps another draft, good or bad, while 24 requests run."""
    requests = example_requests(24, max_tokens=32)
    with served_with("none", tmp_path / "plain", policy="static", num_steps=0) as core:
        expected = run_all(core, requests)
    drafts = [write_damaged(name, SOUND, tmp_path / name) for name in ("wrong d2t", "fc permuted")]
    table = {"1": {"candidate_steps": [0, 1, 2]}}
    with served_with("none", tmp_path / "x", policy=policy, table=table) as core:
        found: dict[str, tuple[int, ...]] = {each.request_id: () for each in requests}
        for each in requests:
            core.submit(each)
        steps = 0
        while core.has_work():
            for output in core.step():
                found[output.request_id] += output.token_ids
            core.scheduler.check()
            steps += 1
            if steps % 5 == 0:
                exchange(core, (*drafts, SOUND)[steps // 5 % 3])
        assert found == expected
        assert steps > 20


@pytest.mark.parametrize("algorithm", DRAFTS)
def test_drafts_of_every_algorithm_are_exchanged_in_pieces(
    checkpoints, tmp_path, monkeypatch, algorithm
):
    """A step between any two pieces: every running request continues, and no text changes."""
    monkeypatch.setattr(draft_exchange, "PIECE_BYTES", 1500)
    first = getattr(checkpoints, DRAFTS[algorithm])
    other = reweighted(first, tmp_path / "other")
    topk = 2 if algorithm in ("EAGLE", "DFLASH") else 1
    mode = "static" if algorithm in ("EAGLE3", "DFLASH") else "off"
    document = boot_of(checkpoints, algorithm, topk, graphs={"mode": mode})
    requests = requests_of(checkpoints.vocab, 4, max_tokens=40)
    plain = build_core(EngineBoot.model_validate(boot_of(checkpoints, "NONE", 1)))
    expected = tokens_of(run(plain, requests))

    core = build_core(EngineBoot.model_validate(document))
    at_start, found = weights_of(core), dict[str, list[int]]()
    for request in requests:
        core.submit(request)
    pieces = exchanges(core, other, first, other)
    while core.has_work():
        if all(not sequence.is_prefilling for sequence in core.scheduler.running):
            next(pieces, lambda: None)()
        decoding = {sequence.request.request_id for sequence in core.scheduler._decoding()}
        outputs = {output.request_id: output.token_ids for output in core.step()}
        assert decoding <= outputs.keys(), "no request waits for an exchange"
        for name, tokens in outputs.items():
            found[name] = [*found.get(name, ()), *tokens]
        core.scheduler.check()
    assert found == expected
    count = 0
    for piece in pieces:
        piece()
        count += 1
    assert count > 0
    assert tokens_of(run(core, requests)) == expected
    document["speculation"]["draft_path"] = str(other)
    fresh = weights_of(build_core(EngineBoot.model_validate(document)))
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in weights_of(core).items())
    assert not all(torch.equal(tensor, fresh[name]) for name, tensor in at_start.items())


def exchanges(core: EngineCore, *folders: Path) -> Iterator[Callable[[], None]]:
    """Yield the pieces of one exchange after the other."""
    assert core.stage_draft is not None
    for folder in folders:
        yield from core.stage_draft(folder)


def test_weights_that_a_draft_repeats_take_no_memory_while_it_is_read(tmp_path, monkeypatch):
    """Published heads often contain the target's embedding and head: more than all the rest."""
    for module in (draft_exchange, repeated_weights):
        monkeypatch.setattr(module, "COMPARED_BYTES", 16 << 10)
    monkeypatch.setattr(packing, "_MEMORY", TorchMemory())
    head = shutil.copytree(EXAMPLES / "eagle", tmp_path / "head")
    target = load_file(EXAMPLES / "target" / "model.safetensors")
    repeated = dict.fromkeys(
        ("embed_tokens.weight", "lm_head.weight"), target["model.embed_tokens.weight"]
    )
    tensors = load_file(head / "model.safetensors")
    copies = {name: tensor.clone() for name, tensor in repeated.items()}
    save_file(tensors | copies, head / "model.safetensors")
    draft: dict[str, Any] = {"algorithm": "EAGLE", "draft_path": str(EXAMPLES / "eagle")}
    with served_with("none", tmp_path / "x", policy="static", **draft) as core:
        staging = core.stage_draft
        assert isinstance(staging, DraftStaging)
        planned = staging.models.exchange_bytes
        with LiveBytes() as live:
            exchange(core, head)
    own = sum(tensor.numel() for tensor in tensors.values()) * 4  # the engine computes in float32
    assert own <= live.peak <= planned
    assert planned < own + sum(tensor.numel() for tensor in repeated.values()) * 4


def test_the_memory_of_an_exchange_is_in_the_plan(tmp_path, caplog):
    caplog.set_level("INFO")
    with served_with("none", tmp_path / "x", policy="static") as core:
        staging = core.stage_draft
        assert isinstance(staging, DraftStaging)
        planned = staging.models.exchange_bytes
    assert planned > 600_000
    assert f"memory: draft exchange       {planned / 2**20:.1f} MiB" in caplog.text


def test_the_new_draft_is_that_of_an_engine_started_with_it(tmp_path):
    damaged = write_damaged("wrong d2t", SOUND, tmp_path / "damaged")
    with served_with("none", tmp_path / "x", policy="static") as core:
        at_start = weights_of(core)
        assert accept_length(core, 12) > 2
        exchange(core, damaged)
        assert accept_length(core, 12) < 1.1
        exchange(core, SOUND)
        assert accept_length(core, 12) > 2
        after = weights_of(core)
    assert at_start.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in at_start.items())


def test_an_exchange_forgets_the_old_draft_and_its_cached_prefixes(tmp_path):
    with served_with("random weights", tmp_path / "x", policy="static") as core:
        run_all(core, example_requests(40, max_tokens=16))
        assert draft_of(core).is_unfit
        requests = example_requests(40, max_tokens=16)
        hits = core.scheduler.cache.hit_tokens
        exchange(core, SOUND)
        assert draft_of(core).fitness is Fitness.UNKNOWN
        run_all(core, requests[:8])
        assert core.scheduler.cache.hit_tokens == hits
        run_all(core, requests)
        assert draft_of(core).fitness is Fitness.FIT
        assert core.scheduler.cache.hit_tokens > hits


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("edit", "text", "needs_restart"),
    [
        (lambda tensors: tensors["fc.weight"].fill_(torch.nan), "fusion.linear.weight", False),
        (lambda tensors: tensors.pop("fc.weight"), "lacks fc.weight", False),
        (
            lambda tensors: tensors.update({"norm.weight": tensors["norm.weight"][:64].clone()}),
            r"norm.weight is \[64\] instead of \[128\]",
            False,
        ),
        (
            lambda tensors: tensors.update({"embed_tokens.weight": torch.zeros(1024, 128)}),
            "embed_tokens.weight differs from the target's, which the running draft uses",
            True,
        ),
    ],
)
def test_a_draft_that_cannot_replace_the_running_one_leaves_every_bit(
    tmp_path, edit, text, needs_restart
):
    folder = edited(tmp_path, edit)
    with served_with("none", tmp_path / "x", policy="static") as core:
        before = weights_of(core)
        with pytest.raises(DraftRefused, match=text) as refused:
            exchange(core, folder)
        assert refused.value.needs_restart is needs_restart
        after = weights_of(core)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_damaged_files_and_other_configs_are_refused(tmp_path):
    cut = edited(tmp_path, lambda tensors: None)
    truncate(cut)
    other = shutil.copytree(SOUND, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    with served_with("none", tmp_path / "x", policy="static") as core:
        with pytest.raises(DraftRefused, match="damaged or cut short"):
            exchange(core, cut)
        with pytest.raises(DraftRefused, match="rope") as refused:
            exchange(core, other)
        assert refused.value.needs_restart
        with pytest.raises(DraftRefused, match="the running draft stays"):
            exchange(core, tmp_path / "nothing")
        with pytest.raises(DraftRefused, match="the running draft stays"):
            exchange(core, EXAMPLES / "draft")
        assert accept_length(core, 8) > 2


def test_a_standalone_draft_is_exchanged(tmp_path):
    random = shutil.copytree(EXAMPLES / "draft", tmp_path / "random")
    tensors = load_file(random / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    noise = {
        name: (torch.randn(each.shape, generator=generator) * 0.1).to(each.dtype)
        for name, each in tensors.items()
    }
    save_file(noise, random / "model.safetensors", {"format": "pt"})
    with served_with(
        "none",
        tmp_path / "x",
        policy="static",
        algorithm="STANDALONE",
        draft_path=str(EXAMPLES / "draft"),
    ) as core:
        assert accept_length(core, 8) > 2
        exchange(core, random)
        assert accept_length(core, 8) < 1.3


def test_an_engine_without_a_draft_refuses():
    document = {"model": {"path": str(EXAMPLES / "target"), "dtype": "float32"}, "device": "cpu"}
    core = build_core(EngineBoot.model_validate(document))
    with pytest.raises(DraftRefused, match="no draft model"):
        exchange(core, SOUND)
