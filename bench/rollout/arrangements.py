"""Which half of the fleet runs which arm, slot by slot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdecode_operator.judge.blocks import Role, schedule

SLOT_S = 15
HORIZON_S = 7200
SLOTS = HORIZON_S // SLOT_S
PODS = 4


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`candidate[slot, half]`: the half runs the candidate. `counted`: not washout."""

    candidate: NDArray[np.bool_]  # [slots, halves]
    counted: NDArray[np.bool_]  # [slots]
    pods: tuple[int, ...]  # in each half
    block_slots: int = 0  # 0: arms side by side

    @property
    def pair_slots(self) -> int:
        """Slots of a pair of blocks."""
        return 2 * self.block_slots


def side_by_side(pods: tuple[int, int] = (PODS // 2, PODS // 2)) -> Arrangement:
    """A canary: the second part of the fleet runs the candidate all the time."""
    candidate = np.tile(np.array([False, True]), (SLOTS, 1))
    return Arrangement(candidate, np.ones(SLOTS, bool), pods)


def crossover(seed: int, block_slots: int = 4, pods: tuple[int, int] = (2, 2)) -> Arrangement:
    """Both halves change over in the middle of every pair of blocks."""
    first = _turns(seed, block_slots)
    return Arrangement(
        np.stack([first, ~first], axis=1), _after_washout(block_slots), pods, block_slots
    )


def switchback(seed: int, block_slots: int = 8) -> Arrangement:
    """One pod, which takes turns with itself."""
    turns = _turns(seed, block_slots)[:, None]
    return Arrangement(turns, _after_washout(block_slots), (1,), block_slots)


def _turns(seed: int, block_slots: int) -> NDArray[np.bool_]:
    """Whether a pod of the first half runs the candidate, by slot."""
    pairs = -(-SLOTS // (2 * block_slots))
    blocks = [role is Role.CANDIDATE for order in schedule(seed, pairs) for role in order]
    return np.repeat(np.array(blocks), block_slots)[:SLOTS]


def _after_washout(block_slots: int) -> NDArray[np.bool_]:
    """The first slot of a block still finishes requests of the block before it."""
    return np.arange(SLOTS) % block_slots != 0
