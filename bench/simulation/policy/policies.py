"""Every policy that is compared, built fresh for a machine."""

import random
from collections.abc import Callable, Iterable

from bench.simulation.policy.chooser import Chooser
from bench.simulation.policy.loads import DEEPEST
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.rivals.clairvoyant import Clairvoyant
from bench.simulation.policy.rivals.ema_seed_table import ema_seed_table
from bench.simulation.policy.rivals.ema_v1 import ema_v1
from bench.simulation.policy.rivals.ema_zero_step import ema_zero_step
from bench.simulation.policy.rivals.throughput_aware import ThroughputAware
from specdecode_engine.adaptive.cost import CostModel, CostPoint
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable

Build = Callable[[Profile, int], Chooser]

# What the engine is recommended to offer, by batch size.
CANDIDATES = {1: (0, 1, 2, 3, 5, 7)}
START = 3
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
PROFILED_KV = (64, 1024)  # tokens of each request while costs are measured
TABLE_ERROR = 0.2
DRAFTS_TO_KNOW = 12

GOODPUT, WRONG_COSTS = "goodput", "goodput, costs off by 20 %"
RIVALS = ("ema v1", "ema seed table", "ema zero-step", "throughput-aware", "throughput-aware wide")


def all_policies() -> dict[str, Build]:
    """Name → how to build it for a machine and a seed."""
    depths = range(DEEPEST + 1)
    return {
        GOODPUT: lambda profile, seed: goodput(profile, cost_points(profile)),
        WRONG_COSTS: lambda profile, seed: goodput(profile, spoil(cost_points(profile), seed)),
        "goodput, no costs": lambda profile, seed: goodput(profile, ()),
        "ema v1": lambda profile, seed: ema_v1(),
        "ema seed table": lambda profile, seed: ema_seed_table(),
        "ema zero-step": lambda profile, seed: ema_zero_step(),
        "throughput-aware": lambda profile, seed: _throughput_aware(profile, (1, 3, 7)),
        "throughput-aware wide": lambda profile, seed: _throughput_aware(
            profile, (1, 2, 3, 4, 5, 6, 7)
        ),
        **{f"static {steps}": _static(steps) for steps in depths},
        "clairvoyant": lambda profile, seed: Clairvoyant(depths),
        "clairvoyant, 12 drafts late": lambda profile, seed: Clairvoyant(depths, DRAFTS_TO_KNOW),
    }


def _static(steps: int) -> Build:
    return lambda profile, seed: StaticPolicy(steps)


def table() -> RangeTable:
    """The recommended candidates."""
    return RangeTable(BatchRange(bound, steps) for bound, steps in CANDIDATES.items())


def goodput(profile: Profile, points: Iterable[CostPoint]) -> GoodputPolicy:
    """The engine's policy with these measured costs."""
    return GoodputPolicy(table(), CostModel(points), START)


def cost_points(profile: Profile, sizes: Iterable[int] = SIZES) -> tuple[CostPoint, ...]:
    """What profiling at start measures, without error."""
    return tuple(
        CostPoint(size, steps, size * kv, profile.seconds(size, steps, size * kv))
        for size in sizes
        for steps in table().candidates()
        for kv in PROFILED_KV
    )


def spoil(points: Iterable[CostPoint], seed: int) -> tuple[CostPoint, ...]:
    """Make each cell wrong by up to `TABLE_ERROR`, its KV part along with it."""
    draw = random.Random(f"costs {seed}")
    errors: dict[tuple[int, int], float] = {}
    spoilt = []
    for point in points:
        cell = point.batch_size, point.num_steps
        if cell not in errors:
            errors[cell] = 1.0 + draw.uniform(-TABLE_ERROR, TABLE_ERROR)
        seconds = point.seconds * errors[cell]
        spoilt.append(CostPoint(point.batch_size, point.num_steps, point.kv_tokens, seconds))
    return tuple(spoilt)


def _throughput_aware(profile: Profile, candidates: tuple[int, ...]) -> Chooser:
    costs = {
        (size, steps): profile.seconds(size, steps, 512 * size)
        for size in SIZES
        for steps in candidates
    }
    return ThroughputAware(candidates, costs)
