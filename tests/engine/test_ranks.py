"""Parts of ranks are added in one order, whatever the number of rows."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed

from specdecode_engine.ranks import (
    ALONE,
    FEW_ROWS,
    Ranks,
    RanksDiverged,
    check_agreement,
    shared_clock,
)
from specdecode_engine.serve.engine.core import make_links
from specdecode_engine.startup.device import join_ranks

SIZE = 3  # with a part between the first and the last
DIM = 5
Results = dict[str, list[object]]


def _run(rank: int, folder: Path, links: Sequence[Connection]) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks(rank, SIZE, str(folder / "store"), links, torch.device("cpu"))
    results = {work.__name__: work(ranks) for work in (_add, _join, _agree, _diverge)}
    # Not through a pipe: the memory of a tensor that is sent ends with the process.
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each function returned in each of the processes, by the function's name."""
    context, folder = multiprocessing.get_context("spawn"), tmp_path_factory.mktemp("ranks")
    links = make_links(SIZE)
    processes = [
        context.Process(target=_run, args=(rank, folder, links[rank])) for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * SIZE
    returned = [torch.load(folder / f"{rank}.pt") for rank in range(SIZE)]
    return {name: [each[name] for each in returned] for name in returned[0]}


def _parts(rows: int, dtype: torch.dtype) -> list[Tensor]:
    """Return parts of very different sizes, whose sum depends on the order."""
    generator = torch.Generator().manual_seed(rows)
    scales = 10.0 ** torch.arange(SIZE)
    return [
        (torch.randn(rows, DIM, generator=generator) * scale).to(dtype) for scale in scales.tolist()
    ]


DTYPES = torch.float32, torch.float64, torch.bfloat16
ROWS = 1, 2, FEW_ROWS * SIZE, FEW_ROWS * SIZE + 1, 6 * FEW_ROWS * SIZE


def _add(ranks: Ranks) -> list[Tensor]:
    return [ranks.add(_parts(rows, dtype)[ranks.rank]) for dtype in DTYPES for rows in ROWS]


def test_every_rank_gets_the_sum_in_the_order_of_ranks_for_any_number_of_rows(
    results: Results,
) -> None:
    expected = []
    for dtype in DTYPES:
        wide = torch.float32 if dtype is torch.bfloat16 else dtype
        for rows in ROWS:
            first, second, third = (part.to(wide) for part in _parts(rows, dtype))
            expected.append(((first + second) + third).to(dtype))
    for sums in results["_add"]:
        assert isinstance(sums, list)
        for got, wanted in zip(sums, expected, strict=True):
            assert torch.equal(got, wanted)


def _join(ranks: Ranks) -> Tensor:
    return ranks.join(torch.full((2, 2), float(ranks.rank)))


def test_columns_are_joined_in_the_order_of_ranks(results: Results) -> None:
    for joined in results["_join"]:
        assert isinstance(joined, Tensor)
        assert joined.tolist() == [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0]] * 2


def _agree(ranks: Ranks) -> object:
    clock = shared_clock(ranks, lambda: 100.0 + ranks.rank)
    return ranks.agree(ranks.rank, 0.5), clock(), ranks.least(7 - ranks.rank)


def test_all_ranks_use_the_values_of_the_leader_and_the_least_of_all(results: Results) -> None:
    assert results["_agree"] == [((0.0, 0.5), 100.0, 5)] * SIZE


def _diverge(ranks: Ranks) -> object:
    check_agreement(ranks, 1, 2)
    try:
        check_agreement(ranks, 1, 2 + ranks.rank // 2)
    except RanksDiverged as error:
        return str(error)
    return None


def test_a_rank_that_would_compute_another_step_than_the_leader_is_found(results: Results) -> None:
    message = "rank 2 is about to compute (1, 3), and the leader (1, 2)"
    assert results["_diverge"] == [None, None, message]


@pytest.mark.parametrize("rows", [1, 100])
def test_one_rank_returns_what_it_is_given(rows: int) -> None:
    part = torch.randn(rows, DIM)
    assert ALONE.add(part) is part
    assert ALONE.parts(part) is part
    assert ALONE.join(part) is part
    assert ALONE.agree(1.5) == (1.5,)
    assert ALONE.least(3) == 3
    check_agreement(ALONE, 1)
    clock = shared_clock(ALONE, lambda: 2.0)
    assert clock() == 2.0
