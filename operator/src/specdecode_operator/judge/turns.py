"""Order and length of turns: the randomization that the judge's error rates rest on.

Arms that take turns come in pairs of turns. `turn_order` draws the order of the two roles of each
pair by a fair coin, independent of all other pairs; of several pods the first half follows it, and
the second half runs the other role (`role_in_turn`). Nothing but this coin may decide which role
runs first: it must not depend on load, pods or time.

`turn_stretch` multiplies the length of both turns of a pair, so that no load with a fixed period
stays aligned with the pairs. The first `PROBE_PAIRS` pairs are probes: they and their washouts
are short, and one pod takes part, so a broken candidate has answered few requests at its alarm.
"""

import random
from functools import lru_cache

from specdecode_operator.judge.evidence import Role

PROBE_PAIRS = 3
PROBE_STRETCH = 0.08
PROBE_WASHOUT = 0.3
SHORTEST, LONGEST = 0.75, 1.25

_DRAWS = 1024
"""Latest ones that are kept: each look needs those of the running pair, for every pod."""
_BASELINE_FIRST = (Role.BASELINE, Role.CANDIDATE)


@lru_cache(maxsize=_DRAWS)
def turn_order(seed: int, pair: int) -> tuple[Role, Role]:
    """Role of the first half of the pods in the first and in the second turn of a pair."""
    is_swapped = random.Random(f"order {seed} {pair}").random() < 0.5
    return _BASELINE_FIRST[::-1] if is_swapped else _BASELINE_FIRST


@lru_cache(maxsize=_DRAWS)
def turn_stretch(seed: int, pair: int) -> float:
    """Factor of the configured turn length, the same for both turns of a pair."""
    if pair < PROBE_PAIRS:
        return PROBE_STRETCH
    return random.Random(f"stretch {seed} {pair}").uniform(SHORTEST, LONGEST)


def washout_stretch(pair: int) -> float:
    """Factor of the configured washout.

    The candidate answers requests during the washout as well. Alarms need factors of two, so probes
    need not wait until batches are as large as they will be.
    """
    return PROBE_WASHOUT if pair < PROBE_PAIRS else 1.0


def pods_in_pair(pair: int, pods: int) -> int:
    """How many of the available pods take part in a pair: one, or an even number."""
    if pods <= 1 or pair < PROBE_PAIRS:
        return min(pods, 1)
    return pods // 2 * 2


def role_in_turn(seed: int, pair: int, turn: int, pod: int) -> Role:
    """Role of the pod with this index (0, 1, …) in turn 0 or 1 of a pair; odd ones are reversed."""
    return turn_order(seed, pair)[(turn + pod) % 2]
