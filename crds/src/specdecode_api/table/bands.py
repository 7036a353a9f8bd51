"""Where policy `ema` rises, falls and caps, and tables in which it cannot come to rest.

All of it counts accepted draft tokens of a request in a round, the bonus token left out. The
thresholds are those of SGLang's adaptive speculative decoding.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from specdecode_api.speculation import Policy
from specdecode_api.table.entry import MAX_CEILING_COEFF, TableEntry


def accepted_to_rise(num_steps: int, up_hysteresis: float) -> float:
    """Return the mean above which `num_steps` gives way to the next deeper candidate."""
    return num_steps - 0.5 + up_hysteresis


def accepted_to_fall(shallower: int, down_hysteresis: float) -> float:
    """Return the mean at or below which a depth gives way to the next `shallower` candidate."""
    return (0.5 if shallower == 0 else shallower - 0.5) + down_hysteresis


def ceiling(accepted: float, ceiling_coeff: float) -> int:
    """Return the greatest depth that a mean of `accepted` pays for."""
    return max(1, math.ceil(accepted * ceiling_coeff))


def table_warnings(entries: Mapping[str, TableEntry], policy: Policy) -> tuple[str, ...]:
    """Say where the depth would go to and fro under a steady load; only `ema` has thresholds."""
    if policy is not Policy.EMA:
        return ()
    return tuple(said for bound, entry in entries.items() for said in _doubts(bound, entry))


def _doubts(bound: str, entry: TableEntry) -> Iterator[str]:
    steps = sorted(entry.candidate_steps)
    for low, high in pairwise(steps):
        rise = accepted_to_rise(low, entry.up_hysteresis)
        fall = accepted_to_fall(low, entry.down_hysteresis)
        if low > 0 and rise - fall <= 0:
            yield (
                f"{bound}: depth {low} rises to {high} above {rise:g} accepted tokens and {high} "
                f"falls back at {fall:g}: nothing keeps them apart; "
                f"lower down_hysteresis {entry.down_hysteresis:g} "
                f"below up_hysteresis {entry.up_hysteresis:g}"
            )
    yield from _never_rests(bound, entry, steps)
    yield from _ceiling_undoes(bound, entry, steps)


def _never_rests(bound: str, entry: TableEntry, steps: list[int]) -> Iterator[str]:
    """Look at the depth above plain decoding, where both are followed by a deeper one."""
    if len(steps) < 3 or steps[0] != 0:
        return
    rise = accepted_to_rise(steps[1], entry.up_hysteresis)
    fall = accepted_to_fall(0, entry.down_hysteresis)
    if rise - fall <= 0:
        yield (
            f"{bound}: depth {steps[1]} falls to 0 at {fall:g} accepted tokens and rises to "
            f"{steps[2]} above {rise:g}: it is never kept; lower down_hysteresis "
            f"{entry.down_hysteresis:g}, or leave out {steps[1]}"
        )


def _ceiling_undoes(bound: str, entry: TableEntry, steps: list[int]) -> Iterator[str]:
    """Look for rises that the cap takes back at the next decision, at the same mean."""
    if entry.ceiling_coeff == 0:
        return
    for low, high in pairwise(steps):
        rise = accepted_to_rise(low, entry.up_hysteresis)
        # The cap of a mean that is greater than `rise` by next to nothing.
        cap = max(1, math.floor(rise * entry.ceiling_coeff) + 1)
        if low > 0 and cap < high:
            yield (
                f"{bound}: depth {low} rises to {high} above {rise:g} accepted tokens, where "
                f"ceiling_coeff {entry.ceiling_coeff:g} caps it at {cap}: it goes to and fro; "
                f"{_enough(rise, high)}"
            )


def _enough(rise: float, high: int) -> str:
    needed = math.ceil((high - 1) / rise * 100) / 100 if rise > 0 else math.inf
    raised = f"raise ceiling_coeff to {needed:g} or " if needed <= MAX_CEILING_COEFF else ""
    return f"{raised}set it to 0"
