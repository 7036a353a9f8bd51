"""The ring of hidden states reads what was written, whether steps are written together or not."""

import random

import pytest
import torch
from torch import Tensor

from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.speculate.draft_state import JOINED_STEPS, HiddenStateRing

CPU = torch.device("cpu")
REQUESTS, STEP_ROWS, WIDTH = 3, 4, 2


def make_ring(kept: int, *, joins_steps: bool = True) -> HiddenStateRing:
    return HiddenStateRing(
        REQUESTS, STEP_ROWS, WIDTH, torch.float32, CPU, kept, joins_steps=joins_steps
    )


def batch_of(lengths: dict[int, int]) -> DecodeBatch:
    req_indices, host = tuple(lengths), tuple(lengths.values())
    return DecodeBatch(req_indices, host, torch.tensor(req_indices), torch.tensor(host))


def assert_kept(ring: HiddenStateRing, texts: dict[int, Tensor]) -> None:
    """Compare the kept positions of each request with its hidden states so far [n, width]."""
    for req_index, text in texts.items():
        first = max(len(text) - ring.kept, 0)
        span = (req_index, first, len(text))
        assert torch.equal(ring.read_span(span), text[first:])
        positions = torch.arange(first, len(text))
        requests = torch.full_like(positions, req_index)
        assert torch.equal(ring.read(requests, positions), text[first:])


@pytest.mark.parametrize("kept", [1, 5, 64])
def test_a_ring_reads_the_latest_hidden_states_when_steps_are_written_together(kept: int) -> None:
    """Steps of one row and of several, batches that change, requests that begin anywhere."""
    ring, rng = make_ring(kept), random.Random(kept)
    texts: dict[int, Tensor] = {}
    for _ in range(300):
        if len(texts) < REQUESTS or rng.random() < 0.03:
            req_index = rng.randrange(REQUESTS)
            texts[req_index] = torch.rand(rng.randint(1, 90), WIDTH)
            ring.write_span((req_index, 0, len(texts[req_index])), texts[req_index])
        members = rng.sample(sorted(texts), rng.randint(1, len(texts)))
        batch = batch_of({one: len(texts[one]) for one in members})
        rows = 1 if rng.random() < 0.9 else STEP_ROWS
        hidden = torch.rand(len(members), rows, WIDTH)
        ring.write_rows(batch, hidden)
        for place, one in enumerate(members):
            accepted = rng.randint(1, rows)
            texts[one] = torch.cat([texts[one], hidden[place, :accepted]])
        if rng.random() < 0.05:
            assert_kept(ring, texts)
    assert_kept(ring, texts)


def test_a_ring_writes_once_for_several_steps_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = HiddenStateRing._write

    def counted(
        ring: HiddenStateRing, req_indices: Tensor, positions: Tensor, hidden: Tensor
    ) -> None:
        written.append(len(hidden))
        write(ring, req_indices, positions, hidden)

    monkeypatch.setattr(HiddenStateRing, "_write", counted)
    for joins_steps, expected in ((True, [2 * JOINED_STEPS]), (False, [2] * JOINED_STEPS)):
        written.clear()
        ring = make_ring(64, joins_steps=joins_steps)
        for step in range(JOINED_STEPS):
            ring.write_rows(batch_of({0: step, 2: step}), torch.rand(2, 1, WIDTH))
        assert written == expected


def test_a_ring_that_is_cleared_forgets_what_waits() -> None:
    ring = make_ring(64)
    ring.write_rows(batch_of({0: 0, 1: 0}), torch.ones(2, 1, WIDTH))
    ring.clear(1)
    assert torch.equal(ring.read_span((0, 0, 1)), torch.ones(1, WIDTH))
    assert torch.equal(ring.read_span((1, 0, 1)), torch.zeros(1, WIDTH))
