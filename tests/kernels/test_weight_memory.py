"""Packed weights lie one after the other in fresh memory, each with a storage of its own."""

import gc
import weakref
from pathlib import Path

import pytest

from specdecode_kernels.cpu.memory import CHUNK_BYTES, HUGE_PAGE_BYTES, WeightMemory, fresh_memory
from specdecode_kernels.cpu.tuning import Tuning

TUNING = Tuning()
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def flags_of(address: int) -> list[str]:
    """Read the flags of the mapping that an address is in from /proc/self/smaps."""
    is_here = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            first, end = (int(bound, 16) for bound in name.split("-"))
            is_here = first <= address < end
        elif is_here and name == "VmFlags:":
            return values
    raise AssertionError(f"{address:#x} is in no mapping")


def test_weights_lie_one_after_the_other() -> None:
    of = WeightMemory()
    first, second = of.take(1000, TUNING), of.take(HUGE_PAGE_BYTES, TUNING)
    assert first.data_ptr() % HUGE_PAGE_BYTES == 0
    assert second.data_ptr() == first.data_ptr() + 1024
    assert not first.any()
    assert not second.any()


def test_each_weight_has_a_storage_of_its_own() -> None:
    """Weights that two models share are recognised by their storages."""
    of = WeightMemory()
    weights = [of.take(size, TUNING) for size in (1000, 64, 1)]
    for one in weights:
        assert one.untyped_storage().data_ptr() == one.data_ptr()
        assert one.untyped_storage().nbytes() == one.nbytes


@pytest.mark.parametrize("num_bytes", [CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_a_weight_that_does_not_fit_begins_a_chunk(num_bytes: int) -> None:
    of = WeightMemory()
    before, large = of.take(HUGE_PAGE_BYTES + 1, TUNING), of.take(num_bytes, TUNING)
    assert large.data_ptr() % HUGE_PAGE_BYTES == 0
    large[-1] = before[-1] = 1
    assert large.sum() == before.sum() == 1


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages on request")
@pytest.mark.parametrize("huge", [0, 1])
def test_huge_pages_are_requested_if_the_tuning_has_them(huge: int) -> None:
    held = fresh_memory(HUGE_PAGE_BYTES, Tuning(huge_pages=huge))
    assert ("hg" in flags_of(held.data_ptr())) == bool(huge)


def test_a_chunk_is_freed_with_its_last_weight() -> None:
    of = WeightMemory()
    first, second = of.take(100, TUNING), of.take(100, TUNING)
    assert of._chunk is not None
    chunk = weakref.ref(of._chunk._mapped)
    of.take(CHUNK_BYTES, TUNING)
    del first
    gc.collect()
    assert chunk() is not None
    assert not second.any()
    del second
    gc.collect()
    assert chunk() is None
