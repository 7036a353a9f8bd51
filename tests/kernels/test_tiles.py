"""How attention is cut: rows of one request share a tile, splits fill the processors, no more."""

import pytest

from specdecode_kernels.triton.tiles import MAX_SPLITS, choose_splits, choose_tile, power_of_two


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
    assert tile.pairs * tile.dim * itemsize + tile.stages * keys_and_values <= 160 << 10


def test_one_row_is_split_and_a_full_batch_is_not() -> None:
    assert choose_splits(8, 32768, 64, processors=132) == MAX_SPLITS
    assert choose_splits(64, 32768, 64, processors=132) == 4
    assert choose_splits(512, 32768, 64, processors=132) == 1
    assert choose_splits(8, 100, 64, processors=132) == 1


def test_nothing_to_see_and_nothing_to_do_is_one_split() -> None:
    assert choose_splits(8, 0, 64, processors=132) == 1
    assert choose_splits(0, 0, 64, processors=1) == 1


def test_the_depth_of_a_draft_does_not_change_the_split() -> None:
    # Else the same row would be summed in another order at another depth.
    programs = {
        8 * -(-queries * 4 // choose_tile(queries * 4, 128, 2).pairs) for queries in range(1, 33)
    }
    assert programs == {8}


def test_power_of_two() -> None:
    assert [power_of_two(size) for size in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]
