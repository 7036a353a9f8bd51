"""Requests of an invented fleet, one by one, and their sums as the judge's flat arrays.

A request's batch follows from load, length and speed (Little's law), so a slow configuration also
runs larger batches; steps take longer in them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.simulation.trials.environment import SLOT_S, Environment, Floats
from bench.simulation.trials.worlds import LABELLED, Candidate, World
from specdecode_operator.judge.evidence import Stratum
from specdecode_operator.judge.trial_evidence import CELL, ROW, RoleRow

Ints = NDArray[np.int64]

REQUESTS_PER_S, MEAN_TOKENS = 3.5, 1000.0
MIX = (0.5, 0.3, 0.2)
STEP_S, PER_REQUEST, LARGEST_BATCH = 0.008, 0.02, 64.0
ACCEPT_SPREAD, TIME_SPREAD, BATCH_SPREAD = 0.15, 0.08, 0.25
BUCKETS = (1, 2, 4, 8, 16, 32, 64)
FIRST_TOKEN_S, FIRST_SPREAD = 0.15, 0.5
LONGEST_TOKENS = 200_000.0
FAILED_SHARE = 0.001
LABELS = ("short", "medium", "long")
STRATA = tuple(Stratum(bucket, "greedy", "free", label) for bucket in BUCKETS for label in LABELS)
WIDTH = 2 * (ROW + CELL * len(STRATA))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When and where requests arrive: slot and pod, and the moment in seconds."""

    slot: Ints
    pod: Ints
    at_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that count, each in its group (a turn, a window of a pod) and stratum."""

    group: Ints
    is_new: NDArray[np.bool_]
    stratum: Ints
    tokens: Floats
    seconds: Floats
    steps: Floats
    first_s: Floats
    failed: NDArray[np.bool_]

    def where(self, kept: NDArray[np.bool_]) -> "Requests":
        """Those that are kept."""
        return Requests(
            self.group[kept], self.is_new[kept], self.stratum[kept], self.tokens[kept],
            self.seconds[kept], self.steps[kept], self.first_s[kept], self.failed[kept],
        )  # fmt: skip


def draw_arrivals(around: Environment, slots: slice, rng: np.random.Generator) -> Arrivals:
    """Draw the arrivals of these slots."""
    load = around.load[slots]
    counts = rng.poisson(REQUESTS_PER_S * SLOT_S * load)
    slot, pod = (np.repeat(at.ravel(), counts.ravel()) for at in np.indices(load.shape))
    slot += slots.start
    return Arrivals(slot, pod, (slot + rng.random(len(slot))) * SLOT_S)


def serve(
    world: World,
    candidate: Candidate,
    around: Environment,
    arrivals: Arrivals,
    is_new: NDArray[np.bool_],
    group: Ints,
    rng: np.random.Generator,
) -> Requests:
    """Serve requests, each by the configuration that its pod runs."""
    count = len(is_new)
    at = arrivals.slot, arrivals.pod
    drawn = rng.random(count)
    kind = (drawn > MIX[0]).astype(np.int64) + (drawn > MIX[0] + MIX[1])
    level = around.accept[at]
    base = np.where(level > 0.0, level, np.array(LABELLED, np.float32)[kind])
    typical = np.where(is_new, np.maximum(1.0, base * np.float32(candidate.accept)), base)
    factor = np.where(is_new, candidate.accept, 1.0).astype(np.float32)
    accept = np.maximum(1.0, base * factor * _spread(ACCEPT_SPREAD, count, rng))
    tokens = _lengths(world, count, rng)
    steps = np.maximum(1.0, np.round(tokens / accept))
    step_time = np.where(is_new, candidate.step_time, 1.0).astype(np.float32) * around.speed[at]
    busy = around.load[at] * step_time / typical * np.float32(REQUESTS_PER_S * MEAN_TOKENS * STEP_S)
    batch = np.minimum(busy / np.maximum(1.0 - PER_REQUEST * busy, 0.1), LARGEST_BATCH)
    seconds = steps * step_time * (1.0 + PER_REQUEST * batch) * np.float32(STEP_S)
    own = batch * _spread(BATCH_SPREAD, count, rng)
    bucket = np.clip(np.log2(own), 0, len(BUCKETS) - 1).astype(np.int64)
    return Requests(
        group=group,
        is_new=is_new,
        stratum=bucket * len(LABELS) + kind,
        tokens=tokens,
        seconds=seconds * _spread(TIME_SPREAD, count, rng),
        steps=steps,
        first_s=batch * np.float32(FIRST_TOKEN_S / 12.0) * _spread(FIRST_SPREAD, count, rng),
        failed=rng.random(count) < FAILED_SHARE,
    )


def add_up(seen: Requests, groups: int, slow_s: tuple[float, float]) -> Ints:
    """The arrays of `trial_evidence`, one for each group, [groups, WIDTH].

    `slow_s`: seconds to the first token, and seconds per token, above which one counts as slow.
    """
    role = seen.is_new.astype(np.int64)
    at_cell = (seen.group * len(STRATA) + seen.stratum) * 2 + role
    size = groups * len(STRATA) * 2
    columns = (None, seen.tokens, seen.seconds * np.float32(1e6), seen.steps)
    cells = np.stack([np.bincount(at_cell, column, size) for column in columns], -1)
    cells = cells.reshape(groups, len(STRATA), 2, CELL)
    rows = np.zeros((groups, 2, ROW))
    counts, tokens = cells[..., 0].sum(axis=1), cells[..., 1].sum(axis=1)
    at_row = seen.group * 2 + role
    slow_first, slow_inter = seen.first_s > slow_s[0], seen.seconds > slow_s[1] * seen.tokens
    failed = np.bincount(at_row[seen.failed], None, groups * 2).reshape(groups, 2)
    found = {
        "first_tokens": counts,
        "first_token_us": np.bincount(at_row, seen.first_s * np.float32(1e6), groups * 2),
        "first_tokens_slow": np.bincount(at_row[slow_first], None, groups * 2),
        "inter_tokens": tokens,
        "inter_tokens_slow": np.bincount(at_row[slow_inter], seen.tokens[slow_inter], groups * 2),
        "answered": counts - failed,
        "failed": failed,
    }
    for name, values in found.items():
        rows[..., RoleRow._fields.index(name)] = values.reshape(groups, 2)
    parts = (rows.reshape(groups, -1), cells.reshape(groups, -1))
    return np.rint(np.concatenate(parts, axis=1)).astype(np.int64)


def _spread(sigma: float, count: int, rng: np.random.Generator) -> Floats:
    """Log-normal factors with median 1."""
    return np.asarray(np.exp(np.float32(sigma) * rng.standard_normal(count, np.float32)))


def _lengths(world: World, count: int, rng: np.random.Generator) -> Floats:
    if not world.pareto:
        return 1.0 + np.float32(MEAN_TOKENS) * rng.standard_exponential(count, np.float32)
    least = MEAN_TOKENS * (world.pareto - 1.0) / world.pareto
    lengths = least * (1.0 + rng.pareto(world.pareto, count))
    return np.minimum(lengths, LONGEST_TOKENS).astype(np.float32)
