"""Two hours of a made-up fleet: what its pods would have counted, slot by slot.

Requests come to each pod at random; a request has a class (its accept length and its stratum), an
exponential number of steps, and steps that take longer in larger batches. Pods differ, wander
for minutes, stutter all at once for seconds, fail a request in a thousand, and restart.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout.arrangements import SLOT_S, SLOTS, Arrangement
from rollout.scenarios import MIX, SHIFTED_MIX, Candidate, Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ACCEPT = np.array([2.4, 3.4, 4.2])  # tokens per step, by class
BANDS = (1, 2, 4, 8, 16, 32, 64)  # of batch sizes
CLASSES = len(ACCEPT)
STRATA = len(BANDS) * CLASSES
FIELDS = 9  # of `RequestSums`, in its order
FIRST_TOKEN_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
INTER_TOKEN_S = (0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024)

REQUESTS_PER_S = 1.0  # to each pod
MEAN_ROUNDS = 60.0
ROUND_S = 0.008
BATCH = 12.0
PER_REQUEST = 0.02  # growth of a step's time with each request of its batch
REQUEST_SPREAD, TIME_SPREAD, BATCH_SPREAD = 0.15, 0.08, 0.25
POD_SPREAD, WANDER, STUTTER = 0.01, 0.02, 0.02
FAILURES, RESTARTS_PER_S, IN_FLIGHT = 0.001, 1.0 / 360000, 12


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts by slot and pod; washout is not left out yet."""

    sums: Floats  # [slots, pods, strata, fields]
    first_token: Floats  # [slots, pods, buckets]
    inter_token: Floats  # [slots, pods, buckets]
    failed: Ints  # [slots, pods]
    restarts: Ints  # [slots, pods]
    arrangement: Arrangement

    @property
    def requests(self) -> Floats:
        """[slots, pods]"""
        return np.asarray(self.sums[..., 0].sum(axis=-1))


def run_fleet(
    scenario: Scenario, candidate: Candidate, arrangement: Arrangement, rng: np.random.Generator
) -> Seen:
    """Draw everything at once; the rules look at it later, slot by slot."""
    pods, tried = arrangement.pods, arrangement.candidate
    load, speed = _load(scenario, rng), _speed(scenario, pods, rng)  # [slots], [slots, pods]
    arrivals = rng.poisson(REQUESTS_PER_S * SLOT_S * load[:, None], (SLOTS, pods))
    slot, pod = (np.repeat(at.ravel(), arrivals.ravel()) for at in np.indices((SLOTS, pods)))
    is_new = tried[slot, pod]
    kind = _classes(scenario, slot, (2 * pod + 1 > pods).astype(int), rng)

    weights = np.array(candidate.time_weights)[kind]
    accept = ACCEPT[kind] * np.exp(rng.normal(0.0, REQUEST_SPREAD, len(slot)))
    accept = np.where(is_new, np.maximum(1.0, accept * candidate.accept), accept)
    slower = np.where(is_new, candidate.steps_time**weights, 1.0)
    rounds = 1.0 + np.floor(rng.exponential(MEAN_ROUNDS, len(slot)))
    noise = rng.normal(0.0, 1.2, len(slot)) * np.sqrt(rounds) * (accept > 1.05)
    tokens = np.maximum(rounds, np.round(accept * rounds + noise))
    # Requests that last longer share the pod with more others.
    busy = np.where(tried, candidate.cost, 1.0) * speed * load[:, None]
    batch = BATCH * busy[slot, pod] * np.exp(rng.normal(0.0, BATCH_SPREAD, len(slot)))
    step_s = ROUND_S * (1.0 + PER_REQUEST * batch) * slower * speed[slot, pod]
    seconds = rounds * step_s * np.exp(rng.normal(0.0, TIME_SPREAD, len(slot)))

    band = np.searchsorted(BANDS, np.maximum(1.0, batch), side="right") - 1
    place = slot * pods + pod
    first_s = 0.15 * speed[slot, pod] * load[slot] * np.exp(rng.normal(0.0, 0.5, len(slot)))
    gap_s = seconds / tokens * np.exp(rng.normal(0.0, 0.3, len(slot)))
    restarts = rng.poisson(RESTARTS_PER_S * SLOT_S, arrivals.shape)
    return Seen(
        _sums(place * STRATA + band * CLASSES + kind, tokens, rounds, seconds, pods),
        _histogram(first_s, FIRST_TOKEN_S, place, pods, np.ones(len(slot))),
        _histogram(gap_s, INTER_TOKEN_S, place, pods, tokens),
        rng.binomial(arrivals, FAILURES) + IN_FLIGHT * restarts,  # a restart fails all in flight
        restarts,
        arrangement,
    )


def _load(scenario: Scenario, rng: np.random.Generator) -> Floats:
    """Over its mean, [slots]: a wave, begun anywhere, and unrest by the minute."""
    at = np.arange(SLOTS) * SLOT_S
    wave = np.sin(2.0 * np.pi * (at / 2400.0 + rng.random()))
    unrest = np.repeat(rng.normal(0.0, 0.1, SLOTS // 4 + 1), 4)[:SLOTS]
    return np.asarray(np.exp(np.log(scenario.load_swing) * wave + unrest))


def _speed(scenario: Scenario, pods: int, rng: np.random.Generator) -> Floats:
    """Factor of step times, [slots, pods]."""
    lasting = rng.normal(0.0, POD_SPREAD, pods)
    wander = np.zeros((SLOTS, pods))
    steps = rng.normal(0.0, WANDER * np.sqrt(1 - 0.9**2), (SLOTS, pods))
    wander[0] = rng.normal(0.0, WANDER, pods)
    for slot in range(1, SLOTS):
        wander[slot] = 0.9 * wander[slot - 1] + steps[slot]
    factor = np.exp(lasting + wander + rng.normal(0.0, STUTTER, (SLOTS, pods)))
    if scenario.slow_pod != 1.0:
        # In half of the runs the pod becomes slow within the first half hour.
        onset = max(0, int(rng.integers(-SLOTS // 4, SLOTS // 4)))
        factor[onset:, rng.integers(pods)] *= scenario.slow_pod
    return np.asarray(factor)


def _classes(scenario: Scenario, slot: Ints, half: Ints, rng: np.random.Generator) -> Ints:
    """Class of each request, by the mix of its half at that time."""
    mixes = np.array(scenario.mixes)[half]
    if scenario.mix_drifts:
        share = (0.5 - 0.5 * np.cos(2.0 * np.pi * slot / SLOTS))[:, None]
        mixes = mixes + share * (np.array(SHIFTED_MIX) - np.array(MIX))
    above = rng.random(len(slot))[:, None] > np.cumsum(mixes, axis=1)[:, :-1]
    return np.asarray(above.sum(axis=1))


def _sums(cell: Ints, tokens: Floats, rounds: Floats, seconds: Floats, pods: int) -> Floats:
    """The fields of `RequestSums`, [slots, pods, strata, fields]."""
    columns = (
        np.ones(len(cell)),
        tokens,
        rounds,
        seconds,
        tokens**2,
        rounds**2,
        seconds**2,
        tokens * rounds,
        seconds * tokens,
    )
    size = SLOTS * pods * STRATA
    sums = [np.bincount(cell, weights=column, minlength=size) for column in columns]
    return np.stack(sums, axis=-1, dtype=np.float64).reshape(SLOTS, pods, STRATA, FIELDS)


def _histogram(
    values_s: Floats, bounds_s: tuple[float, ...], place: Ints, pods: int, weights: Floats
) -> Floats:
    """Counts by bucket, [slots, pods, buckets]."""
    buckets = len(bounds_s) + 1
    cell = place * buckets + np.searchsorted(bounds_s, values_s)
    counts = np.bincount(cell, weights=weights, minlength=SLOTS * pods * buckets)
    return np.asarray(counts, np.float64).reshape(SLOTS, pods, buckets)
