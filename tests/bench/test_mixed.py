"""A batch of which half of the requests accept little, in real engines."""

from pathlib import Path

import pytest

from bench.cpu.engine.adaptive import Extent, build_adaptable
from bench.cpu.engine.mixed import decode_mixed, is_predictable, predictable_rows, write_mixed_pair
from bench.cpu.peers.epsilon_pair import STRONG, Size
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore

STEPS, BATCH_SIZE = 3, 4
EXTENT = Extent(Size(4, 64, vocab=512, heads=4), answer_tokens=32, repeats=1, learning_steps=1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_mixed_pair(tmp_path_factory.mktemp("mixed"), EXTENT.size, STRONG)


def test_every_second_request_accepts_less_and_keeps_its_half_of_the_vocabulary(
    pair: tuple[Path, Path],
) -> None:
    core = build_adaptable(*pair, STEPS, BATCH_SIZE)
    half, steps, texts = EXTENT.size.vocab // 2, {0: 0, 1: 0}, {0: list[int](), 1: list[int]()}
    for number in range(BATCH_SIZE):
        prompt = tuple(half * (number % 2) + 10 + place for place in range(8))
        core.submit(Request(str(number), prompt, SamplingParams(0, 128, 0.0, ignore_eos=True)))
    while core.has_work():
        for output in core.step():
            side = int(output.request_id) % 2
            steps[side] += 1
            texts[side] += output.token_ids
    assert max(texts[0]) < half <= min(texts[1])
    assert steps[0] < 0.85 * steps[1]


def test_the_clairvoyant_verifies_one_row_of_requests_that_the_draft_predicts_badly(
    pair: tuple[Path, Path],
) -> None:
    core = build_adaptable(*pair, STEPS, BATCH_SIZE)
    core.choose_rows = predictable_rows
    seen = record_rows(core)
    assert decode_mixed(core, BATCH_SIZE, EXTENT, seed=1) > 0
    assert not core.has_work()
    assert {rows for is_good, rows in seen if is_good} == {STEPS + 1}
    assert {rows for is_good, rows in seen if not is_good} == {1}


def record_rows(core: EngineCore) -> list[tuple[bool, int]]:
    """Note the rows of every request and step, next to whether it is predictable."""
    seen, choose = list[tuple[bool, int]](), core.choose_rows

    def note(shape: DraftShape, sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
        rows = choose(shape, sequences)
        good = [is_predictable(sequence.request) for sequence in sequences]
        seen.extend(zip(good, rows, strict=True))
        return rows

    core.choose_rows = note
    return seen
