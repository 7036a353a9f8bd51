"""The order in which requests start."""

from hypothesis import given
from hypothesis import strategies as st

from specdecode_engine.batch.request import AGEING_MS, Request, SamplingParams, queue_order
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.schedule.waiting import WaitingQueue

Orders = st.lists(st.integers(-3, 3), max_size=30)


def sequence(name: str, order: int = 0) -> Sequence:
    return Sequence.of(Request(name, (1,), SamplingParams(0, 1), queue_order=order))


def names(queue: WaitingQueue) -> list[str]:
    return [each.request.request_id for each in queue]


@given(Orders)
def test_the_queue_is_sorted_and_equal_requests_keep_their_order(orders: list[int]) -> None:
    queue = WaitingQueue()
    for number, order in enumerate(orders):
        queue.put(sequence(str(number), order))
    assert names(queue) == [str(n) for n in sorted(range(len(orders)), key=orders.__getitem__)]


@given(Orders, st.integers(-4, 4))
def test_who_has_run_waits_before_those_of_its_order(orders: list[int], order: int) -> None:
    queue = WaitingQueue()
    for number, each in enumerate(orders):
        queue.put(sequence(str(number), each))
    queue.put_back(sequence("back", order))
    place = names(queue).index("back")
    found = [each.request.queue_order for each in queue]
    assert found == sorted(found)
    assert place == sum(each < order for each in orders)


def test_ten_seconds_of_waiting_count_as_one_class_of_priority() -> None:
    waits = queue_order(3, arrived_s=100.0)
    assert AGEING_MS == 10_000
    assert queue_order(2, 109.9) < waits < queue_order(2, 110.1)
    assert queue_order(0, 129.9) < waits < queue_order(0, 130.1)
    assert queue_order(-(2**31), 0.0) < queue_order(2**31 - 1, 0.0)
