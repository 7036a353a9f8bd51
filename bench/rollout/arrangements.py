"""Which pod runs which arm, slot by slot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdecode_operator.judge.blocks import schedule
from specdecode_operator.judge.evidence import Role

SLOT_S = 15
HORIZON_S = 7200
SLOTS = HORIZON_S // SLOT_S


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`candidate[slot, pod]`: the pod runs the candidate; its blocks are `block_slots` long."""

    candidate: NDArray[np.bool_]  # [slots, pods]
    block_slots: int = 0  # 0: arms side by side

    @property
    def pods(self) -> int:
        """Of both arms together."""
        return int(self.candidate.shape[1])


def side_by_side(baseline: int = 2, candidate: int = 2) -> Arrangement:
    """A canary: the last pods run the candidate all the time."""
    arms = np.arange(baseline + candidate) >= baseline
    return Arrangement(np.tile(arms, (SLOTS, 1)))


def crossover(seed: int, pods: int = 4, block_slots: int = 4) -> Arrangement:
    """The halves of a fleet change over in the middle of every pair of blocks."""
    first = _turns(seed, block_slots)
    columns = [first if pod < pods / 2 else ~first for pod in range(pods)]
    return Arrangement(np.stack(columns, axis=1), block_slots)


def switchback(seed: int, block_slots: int = 8) -> Arrangement:
    """One pod, which takes turns with itself."""
    return Arrangement(_turns(seed, block_slots)[:, None], block_slots)


def _turns(seed: int, block_slots: int) -> NDArray[np.bool_]:
    """Whether a pod of the first half runs the candidate, by slot."""
    pairs = -(-SLOTS // (2 * block_slots))
    blocks = [role is Role.CANDIDATE for order in schedule(seed, pairs) for role in order]
    return np.repeat(np.array(blocks), block_slots)[:SLOTS]
