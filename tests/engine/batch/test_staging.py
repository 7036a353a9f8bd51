"""Host numbers reach the device in one copy, without a wait; none is overwritten too early."""

import torch

from specdecode_engine.batch.staging import ALIGNED_ENTRIES, StagingBuffer
from tests.shadow_cuda.active import shadow_cuda

CUDA = torch.device("cuda")


def test_numbers_of_a_step_reach_the_device_in_one_copy() -> None:
    with shadow_cuda() as gpu:
        staging = StagingBuffer(CUDA)
        first, none, second = staging.put([3, -1, 1 << 62]), staging.put(()), staging.put([7])
        third = staging.put_floats([0.5, 1e-300])
        before = gpu.host.ticket
        staging.send()
        staging.send()
        assert gpu.host.ticket == before + 1
        assert gpu.waits == []
        assert (first.tolist(), none.tolist(), second.tolist()) == ([3, -1, 1 << 62], [], [7])
        assert third.tolist() == [0.5, 1e-300]
        assert {view.data_ptr() % (8 * ALIGNED_ENTRIES) for view in (first, second, third)} == {0}


def test_what_reads_staged_numbers_is_launched_in_order_after_the_copy() -> None:
    with shadow_cuda():
        staging, seen = StagingBuffer(CUDA), list[list[int]]()
        first, second = staging.put([1]), staging.put([2])
        staging.after_send(lambda: seen.append(first.tolist()))
        staging.after_send(lambda: seen.append(second.tolist()))
        assert seen == []
        staging.send()
        staging.send()
        assert seen == [[1], [2]]


def test_segments_are_reused_without_waiting_and_only_after_their_copies() -> None:
    """The shadow device raises where pinned memory changes before the copy from it is complete."""
    with shadow_cuda() as gpu:
        staging = StagingBuffer(CUDA, entries=8)
        sums = torch.zeros(3, dtype=torch.int64, device=CUDA)
        for step in range(100):
            views = [staging.put([step, step + 1, step + 2]) for _ in range(2)]
            staging.send()
            sums += views[0] + views[1]
        assert (gpu.waits, gpu.event_waits) == ([], 0)
        assert len(staging._ring) < 20  # an event of the shadow device is reached when asked twice
        torch.cuda.synchronize()
        assert sums.tolist() == [9900, 10100, 10300]


def test_a_list_longer_than_a_segment_gets_a_longer_one() -> None:
    with shadow_cuda():
        staging = StagingBuffer(CUDA, entries=8)
        short, long = staging.put([5]), staging.put(range(1000))
        staging.send()
        assert short.tolist() == [5]
        assert long.tolist() == list(range(1000))


def test_on_a_cpu_nothing_is_copied() -> None:
    staging, written = StagingBuffer(torch.device("cpu")), list[int]()
    assert staging.put([4, 2]).tolist() == [4, 2]
    assert staging.put_floats([]).dtype == torch.float64
    staging.after_send(lambda: written.append(1))
    assert written == [1]
    staging.send()
    assert written == [1]
