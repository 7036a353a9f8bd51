"""Metrics per range of batch sizes; the label `batch_size` is a range's lower bound."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from specdecode_api.series import depths
from specdecode_engine.metrics.families import family_of, filled
from specdecode_engine.metrics.snapshot import RangeSnapshot

_COUNTERS = {
    "rounds_total": depths.RANGE_ROUNDS,
    "request_rounds_total": depths.RANGE_REQUEST_ROUNDS,
    "drafted_tokens_total": depths.RANGE_DRAFTED_TOKENS,
    "accepted_tokens_total": depths.RANGE_ACCEPTED_TOKENS,
    "wasted_tokens_total": depths.RANGE_WASTED_TOKENS,
    "emitted_tokens_total": depths.RANGE_EMITTED_TOKENS,
    "decode_seconds_total": depths.RANGE_DECODE_SECONDS,
}


def collect_ranges(ranges: tuple[RangeSnapshot, ...]) -> Iterator[Metric]:
    """Yield what each range did, what its policy holds, and why it changed its depth."""
    for field, each in _COUNTERS.items():
        yield filled(each, (((str(entry.state.slot),), getattr(entry, field)) for entry in ranges))
    yield filled(
        depths.DEPTH_SWITCHES,
        (
            ((str(entry.state.slot), reason), count)
            for entry in ranges
            for reason, count in entry.switches_total.items()
        ),
    )
    yield from _states(ranges)


def _states(ranges: tuple[RangeSnapshot, ...]) -> Iterator[Metric]:
    steps, ema = family_of(depths.RANGE_NUM_STEPS), family_of(depths.RANGE_ACCEPTED_EMA)
    survival, expected = family_of(depths.RANGE_SURVIVAL), family_of(depths.RANGE_EXPECTED)
    for entry in ranges:
        state, bound = entry.state, str(entry.state.slot)
        steps.add_metric([bound], state.num_steps)
        if state.ema is not None:
            ema.add_metric([bound], state.ema)
        for position, chance in enumerate(state.survival, start=1):
            survival.add_metric([bound, str(position)], chance)
        for depth, rate in state.tokens_per_second.items():
            expected.add_metric([bound, str(depth)], rate)
    yield from (steps, ema, survival, expected)
