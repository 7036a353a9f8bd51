"""The checkpoint of the comparison: known tokens, and exactly the acceptance that was chosen."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bench.gpu.peers.checkpoint import writing
from bench.gpu.peers.checkpoint.cycle import Cycle, count_wrong, draw_agreement
from bench.gpu.peers.checkpoint.sizes import SIZE_8B, TINY
from bench.gpu.peers.checkpoint.writing import (
    Checkpoint,
    CheckpointError,
    is_written,
    write_checkpoint,
)
from bench.gpu.peers.loads import FULL, SMALL, draw_prompts, draw_schedule
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

STEPS, ANSWER = 3, 61


def drawn_runs(seed: int) -> tuple[int, ...]:
    """Return bits in runs, as recordings have them."""
    draw, bits = random.Random(seed), list[int]()
    while len(bits) < TINY.cycle:
        bits += [len(bits) % 2] * draw.randint(1, 9)
    return tuple(bits[: TINY.cycle])


RECORDED = drawn_runs(7)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("peers") / "checkpoint"
    agreements = {"recorded": RECORDED, "eagle3-0.5": draw_agreement(TINY.cycle, 0.5)}
    return write_checkpoint(folder, TINY, agreements, torch.device("cpu"))


def build(checkpoint: Checkpoint, head: str) -> EngineCore:
    document = {
        "model": {"path": str(checkpoint.target), "dtype": "float32", "context_length": 256},
        "speculation": {
            "algorithm": "EAGLE3",
            "draft_path": str(checkpoint.folder / head),
            "num_steps": STEPS,
        },
        "memory": {"prefix_cache": False},
        "device": "cpu",
        "threads": 1,
    }
    return build_core(EngineBoot.model_validate(document))


def answer_by_step(core: EngineCore, prompt: Sequence[int]) -> list[list[int]]:
    """Return the tokens of each step."""
    params = SamplingParams(0, ANSWER, 0.0, ignore_eos=True)
    core.submit(Request("one", tuple(prompt), params))
    emitted = []
    while core.has_work():
        emitted += [[*output.token_ids] for output in core.step() if output.token_ids]
    return emitted


def expected_steps(cycle: Cycle, bits: Sequence[int], place: int) -> list[list[int]]:
    """Return the tokens of the prompt's step and of the steps after it."""
    length, counts, after = len(cycle.order), [1], place + 1
    while sum(counts) < ANSWER:
        most = min(STEPS, ANSWER - sum(counts) - 1)
        accepted = 0
        while accepted < most and bits[(after + accepted) % length]:
            accepted += 1
        counts.append(accepted + 1)
        after += accepted + 1
    tokens = iter(range(place + 1, place + 1 + ANSWER))
    return [[cycle.order[next(tokens) % length] for _ in range(count)] for count in counts]


@pytest.mark.parametrize("head", ["recorded", "eagle3-0.5"])
def test_an_engine_accepts_exactly_the_recorded_positions(
    checkpoint: Checkpoint, head: str
) -> None:
    core, cycle = build(checkpoint, head), checkpoint.cycle
    for place in (0, 130, 300, TINY.cycle - 20):
        prompt = [*draw_prompts(cycle.order, 1, 15, str(place))[0], cycle.order[place]]
        steps = answer_by_step(core, prompt)
        assert steps == expected_steps(cycle, checkpoint.agreements[head], place)


def test_a_checkpoint_is_complete_with_all_its_files(checkpoint: Checkpoint) -> None:
    folder, agreements = checkpoint.folder, checkpoint.agreements
    assert is_written(folder, TINY, agreements)
    assert not is_written(folder, TINY, {"recorded": RECORDED})
    file = folder / "target" / "model-00003-of-00010.safetensors"
    content = file.read_bytes()
    for changed in (None, content[:-1]):
        file.unlink() if changed is None else file.write_bytes(changed)
        assert not is_written(folder, TINY, agreements)
    file.write_bytes(content)
    assert is_written(folder, TINY, agreements)


def test_a_checkpoint_of_other_code_is_written_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "code_hash", lambda: "other")
    assert not is_written(checkpoint.folder, TINY, checkpoint.agreements)


def test_a_folder_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    with pytest.raises(CheckpointError, match="contains files that this program did not write"):
        write_checkpoint(tmp_path, TINY, {}, torch.device("cpu"))
    assert (tmp_path / "thesis").exists()


def test_a_cycle_passes_every_token_once() -> None:
    cycle = Cycle.draw(TINY.cycle)
    successors, token, seen = cycle.successors(), 0, set[int]()
    while token not in seen:
        seen.add(token)
        token = successors[token]
    assert (token, len(seen)) == (0, TINY.cycle)


def test_a_head_drafts_a_permutation_that_differs_where_bits_are_0() -> None:
    cycle = Cycle.draw(TINY.cycle)
    drafted, successors = cycle.drafted(RECORDED), cycle.successors()
    assert sorted(drafted) == [*range(TINY.cycle)]
    agrees = [int(drafted[token] == successors[token]) for token in cycle.order]
    assert agrees == [*RECORDED]


@pytest.mark.parametrize(
    ("bits", "message"),
    [([1] * 7 + [0], "one 0 alone, at position 7"), ([1] * 7, "7 agreement bits for a cycle of 8")],
)
def test_agreements_that_no_head_can_have_are_refused(bits: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cycle.draw(8).drafted(bits)


def test_wrong_tokens_are_counted_after_the_one_before() -> None:
    cycle = Cycle((2, 0, 1))
    successors = cycle.successors()
    assert count_wrong(successors, [1], [2, 0, 1, 2]) == 0
    assert count_wrong(successors, [1], [2, 1, 2]) == 1
    assert count_wrong(successors, [1], [2, 900, 2]) == 2


def test_an_agreement_has_the_share_of_ones() -> None:
    assert sum(draw_agreement(32000, 0.8)) == 25600


def test_a_full_disk_is_an_error_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SPARE_BYTES", 1 << 60)
    with pytest.raises(CheckpointError, match=r"GiB free; the checkpoint takes 0.0 GiB.*--work"):
        write_checkpoint(tmp_path / "one", TINY, {}, torch.device("cpu"))


def test_an_unfinished_checkpoint_is_replaced(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, TINY, {}, torch.device("cpu")).folder
    (folder / "cycle.json").unlink()
    assert not is_written(folder, TINY, {})
    write_checkpoint(folder, TINY, {}, torch.device("cpu"))
    assert is_written(folder, TINY, {})


def test_the_size_of_8b_is_that_of_its_files() -> None:
    assert SIZE_8B.parameters == pytest.approx(8.03e9, rel=0.001)
    assert SIZE_8B.head_parameters == pytest.approx(0.42e9, rel=0.1)


def test_a_schedule_keeps_each_answer_in_the_part_of_its_kind() -> None:
    cycle = Cycle.draw(SIZE_8B.cycle).order
    place_of = {token: place for place, token in enumerate(cycle)}
    requests = draw_schedule(cycle, FULL.decode, FULL.varying, seed=1)
    part = len(cycle) // 6
    for one in requests:
        first = place_of[one.prompt[-1]]
        assert one.kind * part <= first < first + one.tokens < (one.kind + 1) * part
        assert FULL.decode.long // 2 <= one.tokens <= FULL.decode.long
    assert {one.kind for one in requests} == set(range(6))
    assert max(one.running for one in requests) == 128
    assert requests == draw_schedule(cycle, FULL.decode, FULL.varying, seed=1)


def test_a_cycle_too_short_for_its_kinds_is_refused() -> None:
    with pytest.raises(ValueError, match="6 tokens of the cycle per kind; an answer has 40"):
        draw_schedule(range(40), SMALL.decode, SMALL.varying, seed=1)
