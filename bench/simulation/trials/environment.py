"""What pods live through, in slots of five seconds: load, content and speed of each pod."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.simulation.trials.worlds import World

Floats = NDArray[np.float32]

SLOT_S = 5.0


@dataclass(frozen=True, slots=True)
class Environment:
    """All [slots, pods]. `accept`: mean accept length of unlabelled content; 0: by class.

    `load` is a multiple of the usual number of requests; `speed` is a factor of step time.
    """

    load: Floats
    accept: Floats
    speed: Floats


def draw_environment(
    world: World, pods: int, hours_s: float, pair_s: float, rng: np.random.Generator
) -> Environment:
    """Draw the environment of a trial; `pair_s` is the mean length of a pair or window."""
    slots = int(hours_s / SLOT_S)
    accept = np.zeros((slots, pods))
    if world.content:
        states = telegraph(world.content_dwell_s, slots, pods if world.is_sticky else 1, rng)
        accept = accept + np.where(states, *world.content)
    keep = np.exp(-SLOT_S / world.drift_s)
    drift = _autoregressive(world.drift, keep, slots, pods, rng)
    speed = np.exp(drift + rng.normal(0.0, 0.01, pods) + rng.normal(0.0, 0.02, (slots, pods)))
    if world.slowdown != 1.0:
        is_slow = telegraph(world.slow_s, slots, 1, rng, world.calm_s)
        speed = speed * np.where(is_slow, world.slowdown, 1.0)
    period_s = world.period_pairs * pair_s or world.period_s
    load = world.level * _load(world, slots, pods, period_s, rng)
    return Environment(*(part.astype(np.float32) for part in (load, accept, speed)))


def telegraph(
    dwell_s: float,
    slots: int,
    columns: int,
    rng: np.random.Generator,
    other_dwell_s: float | None = None,
) -> NDArray[np.bool_]:
    """A state that flips after exponential times, [slots, columns].

    `dwell_s` and `other_dwell_s` are the mean times in the state and out of it; equal by default.
    """
    dwells_s = np.array([other_dwell_s or dwell_s, dwell_s])  # out of the state, in it
    leaves = -np.expm1(-SLOT_S / dwells_s)
    drawn = rng.random((slots, columns))
    if other_dwell_s is None:
        flipped = np.cumsum(drawn < leaves[1], axis=0) + rng.integers(0, 2, columns)
        return np.asarray(flipped % 2 == 1)
    states = np.empty((slots, columns), np.bool_)
    state = rng.random(columns) < dwell_s / dwells_s.sum()
    for slot in range(slots):
        state = state ^ (drawn[slot] < leaves[state.astype(np.int64)])
        states[slot] = state
    return states


def _load(
    world: World, slots: int, pods: int, period_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    at_s = np.arange(slots) * SLOT_S
    load = np.exp(rng.normal(0.0, 0.1, (slots // 12 + 1, 1))).repeat(12, axis=0)[:slots]
    phase = at_s / 2400 + rng.random()
    load = load * np.exp(np.log(world.wave) * np.sin(2 * np.pi * phase))[:, None]
    low = 2.0 / (1.0 + world.burst)
    if world.burst_dwell_s:
        is_high = telegraph(world.burst_dwell_s, slots, pods, rng)
        load = load * np.where(is_high, low * world.burst, low)
    if period_s:
        is_high = (at_s / period_s + rng.random()) % 1.0 < 0.5
        load = load * np.where(is_high, low * world.burst, low)[:, None]
    return np.asarray(load * np.ones((1, pods)))


def _autoregressive(
    spread: float, keep: float, slots: int, pods: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """AR(1) with this standard deviation, [slots, pods]: sums of steps that fade by `keep`."""
    steps = rng.normal(0.0, spread * np.sqrt(1 - keep**2), (slots, pods))
    steps[0] = rng.normal(0.0, spread, pods)
    values = np.empty_like(steps)
    known = np.zeros(pods)
    for start in range(0, slots, 256):  # in parts, for keep**-n grows
        part = steps[start : start + 256]
        fades = keep ** np.arange(1, len(part) + 1)[:, None]
        values[start : start + 256] = fades * (known + np.cumsum(part / fades, axis=0))
        known = values[start + len(part) - 1]
    return values
