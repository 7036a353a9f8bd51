"""Thresholds and cap of policy `ema`, and warnings for tables in which it oscillates.

All values count accepted draft tokens per request and step, without the bonus token. The
thresholds are those of SGLang's adaptive speculative decoding.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from pydantic.alias_generators import to_camel

from specdecode_api.speculation import Policy
from specdecode_api.table.entry import MAX_CEILING_COEFF, HasThresholds


def accepted_to_rise(num_steps: int, up_hysteresis: float) -> float:
    """Return the mean above which the next higher candidate follows `num_steps`."""
    return num_steps - 0.5 + up_hysteresis


def accepted_to_fall(shallower: int, down_hysteresis: float) -> float:
    """Return the mean at or below which the next lower candidate, `shallower`, follows."""
    return (0.5 if shallower == 0 else shallower - 0.5) + down_hysteresis


def ceiling(accepted: float, ceiling_coeff: float) -> int:
    """Return the cap on draft steps at a mean of `accepted` tokens."""
    return max(1, math.ceil(accepted * ceiling_coeff))


def table_warnings(entries: Mapping[str, HasThresholds], policy: Policy) -> tuple[str, ...]:
    """Warn where draft steps would oscillate under a steady load; only `ema` has thresholds."""
    if policy is not Policy.EMA:
        return ()
    return tuple(
        f"{bound}: {text}" for bound, entry in entries.items() for text in _warnings(entry)
    )


_NAMES: Final = ("num_steps", "up_hysteresis", "down_hysteresis", "ceiling_coeff")


def resource_table_warnings(
    entries: Mapping[str, HasThresholds], policy: Policy
) -> tuple[str, ...]:
    """Warn as `table_warnings` does, in the names of the custom resource."""

    def in_camel(text: str) -> str:
        for name in _NAMES:
            text = text.replace(name, to_camel(name))
        return text

    place = "speculation.adaptive.batchSizes from"
    return tuple(f"{place} {in_camel(text)}" for text in table_warnings(entries, policy))


def _warnings(entry: HasThresholds) -> Iterator[str]:
    steps = sorted(entry.candidate_steps)
    for low, high in pairwise(steps):
        rise = accepted_to_rise(low, entry.up_hysteresis)
        fall = accepted_to_fall(low, entry.down_hysteresis)
        if low > 0 and rise - fall <= 0:
            yield (
                f"num_steps {low} rises to {high} above {rise:g} accepted tokens, and "
                f"{high} falls back at {fall:g}: the policy oscillates; "
                f"lower down_hysteresis {entry.down_hysteresis:g} "
                f"below up_hysteresis {entry.up_hysteresis:g}"
            )
    yield from _never_rests(entry, steps)
    yield from _ceiling_undoes(entry, steps)


def _never_rests(entry: HasThresholds, steps: list[int]) -> Iterator[str]:
    """Check the lowest candidate above 0, if a higher one follows."""
    if len(steps) < 3 or steps[0] != 0:
        return
    rise = accepted_to_rise(steps[1], entry.up_hysteresis)
    fall = accepted_to_fall(0, entry.down_hysteresis)
    if rise - fall <= 0:
        yield (
            f"num_steps {steps[1]} falls to 0 at {fall:g} accepted tokens and rises to "
            f"{steps[2]} above {rise:g}: it is never kept; lower down_hysteresis "
            f"{entry.down_hysteresis:g}, or leave out {steps[1]}"
        )


def _ceiling_undoes(entry: HasThresholds, steps: list[int]) -> Iterator[str]:
    """Find rises that the cap reverts at the next decision, at the same mean."""
    if entry.ceiling_coeff == 0:
        return
    for low, high in pairwise(steps):
        rise = accepted_to_rise(low, entry.up_hysteresis)
        # The cap of a mean that is barely greater than `rise`.
        cap = max(1, math.floor(rise * entry.ceiling_coeff) + 1)
        if low > 0 and cap < high:
            yield (
                f"num_steps {low} rises to {high} above {rise:g} accepted tokens, where "
                f"ceiling_coeff {entry.ceiling_coeff:g} caps it at {cap}: the policy oscillates; "
                f"{_enough(rise, high)}"
            )


def _enough(rise: float, high: int) -> str:
    needed = math.ceil((high - 1) / rise * 100) / 100 if rise > 0 else math.inf
    raised = f"raise ceiling_coeff to {needed:g} or " if needed <= MAX_CEILING_COEFF else ""
    return f"{raised}set it to 0"
