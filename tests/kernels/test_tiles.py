"""How attention is cut: rows of one request share a tile, splits fill the processors, no more."""

import pytest

from specdecode_kernels import AttentionParams
from specdecode_kernels.triton.backend import tile_for
from specdecode_kernels.triton.tiles import MAX_SPLITS, choose_splits, choose_tile, power_of_two

SMALLEST_SHARED_BYTES = 99 << 10  # that a program may take, on the chips of 8.6, 8.9 and 12.0


@pytest.mark.parametrize("shared", [1, 2, 4, 8])
@pytest.mark.parametrize("queries", [1, 2, 5, 8, 16])
def test_a_verify_loads_keys_once(queries: int, shared: int) -> None:
    assert choose_tile(queries * shared, 128, 2).pairs >= queries * shared


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("dim", [8, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("pairs", [1, 16, 17, 100, 5000])
def test_a_tile_is_legal_and_fits(pairs: int, dim: int, itemsize: int) -> None:
    tile = choose_tile(pairs, dim, itemsize)
    assert {tile.pairs, tile.rows, tile.dim} <= {16, 32, 64, 128, 256}
    assert tile.dim >= dim
    keys_and_values = 2 * tile.rows * tile.dim * itemsize
    in_flight = (tile.stages - 1) * keys_and_values
    assert tile.pairs * tile.dim * itemsize + in_flight <= SMALLEST_SHARED_BYTES


def test_no_tile_holds_32_pairs_where_64_were_faster() -> None:
    assert [choose_tile(pairs, 128, 2).pairs for pairs in (16, 17, 32, 33)] == [16, 64, 64, 64]
    assert choose_tile(32, 128, 2, is_tree=True).pairs == 64
    assert choose_tile(32, 128, 2, is_float8=True).pairs == choose_tile(32, 64, 2).pairs == 32


def test_registers_are_limited_where_four_programs_of_a_processor_were_faster() -> None:
    def most_registers(pairs: int, page_size: int, itemsize: int) -> int | None:
        return tile_for(
            AttentionParams(),
            pairs,
            128,
            itemsize,
            page_size=page_size,
            is_float8=False,
            is_tree=False,
        ).most_registers

    assert most_registers(4, page_size=1, itemsize=2) == 128
    assert most_registers(17, page_size=1, itemsize=2) is None
    assert most_registers(4, page_size=16, itemsize=2) is None
    assert most_registers(4, page_size=1, itemsize=4) is None


@pytest.mark.parametrize("is_float8", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_rows_of_keys_do_not_depend_on_queries(dim: int, itemsize: int, is_float8: bool) -> None:
    # Else decode and verify would sum the same row in another order.
    tiles = [
        choose_tile(pairs, dim, itemsize, is_float8=is_float8, is_tree=is_tree)
        for pairs in (1, 16, 40, 64, 128, 4096)
        for is_tree in (False, True)
    ]
    assert len({(tile.rows, tile.dim) for tile in tiles}) == 1


def test_one_row_is_split_and_a_full_batch_is_not() -> None:
    assert choose_splits(8, 4, 32768, processors=132) == MAX_SPLITS
    assert choose_splits(64, 4, 32768, processors=132) == 4
    assert choose_splits(512, 4, 32768, processors=132) == 1
    assert choose_splits(8, 4, 100, processors=132) == 1
    assert choose_splits(8, 4 * 4096, 32768, processors=132) == 1


def test_nothing_to_see_and_nothing_to_do_is_one_split() -> None:
    assert choose_splits(8, 4, 0, processors=132) == 1
    assert choose_splits(0, 0, 0, processors=1) == 1


def test_the_depth_of_a_draft_does_not_change_the_split() -> None:
    # Else the same row would be summed in another order at another depth.
    splits = {choose_splits(8, queries * 4, 4096, processors=132) for queries in range(1, 33)}
    assert splits == {32}


def test_power_of_two() -> None:
    assert [power_of_two(size) for size in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]
