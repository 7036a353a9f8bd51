"""The queue of requests that wait to start."""

from bisect import bisect_left, bisect_right
from collections import deque

from specdecode_engine.batch.sequence import Sequence


class WaitingQueue(deque[Sequence]):
    """Sequences in the order in which they start: by `Request.queue_order`, equals as they came.

    The order of a request never changes, so that no wait makes it necessary to sort again.
    """

    def put(self, sequence: Sequence) -> None:
        """Let a sequence wait after those of its order."""
        self.insert(bisect_right(self, queue_order(sequence), key=queue_order), sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Let a sequence that has run wait before those of its order."""
        self.insert(bisect_left(self, queue_order(sequence), key=queue_order), sequence)


def queue_order(sequence: Sequence) -> int:
    return sequence.request.queue_order
