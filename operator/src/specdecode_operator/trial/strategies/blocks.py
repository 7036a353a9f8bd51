"""Switchback with restarts: lengths of its blocks, and whether enough of them fit into a trial.

Every block begins with new pods, whichever configuration ran before: otherwise the first block of
a pair could continue with warm caches and the second one never could, and the order would show.
"""

import math
import statistics
from collections.abc import Callable, Iterable

from specdecode_api.v1alpha1 import Spec
from specdecode_operator.judge.evidence import ArmEvidence, RequestSums, Stratum
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.randomization import fewest_pairs
from specdecode_operator.judge.trial_evidence import MAX_STRATA
from specdecode_operator.judge.turns import PROBE_PAIRS, SHORTEST, turn_stretch
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.rollout import condition, replicas_of
from specdecode_operator.objects.times import time_of
from specdecode_operator.trial.record.state import KnownStratum, Restarts, Startup
from specdecode_operator.trial.strategies.guard import TrialTiming

TIMES_START = 10.0
"""Least length of a block, as a multiple of the time that its pods need to start."""


def known_strata(arms: Iterable[ArmEvidence]) -> tuple[KnownStratum, ...]:
    """Sum up what pods have answered, the commonest strata first."""
    sums: dict[Stratum, RequestSums] = {}
    for arm in arms:
        for stratum, found in arm.strata.items():
            sums[stratum] = sums.get(stratum, RequestSums()) + found
    rows = [
        KnownStratum(stratum, each.requests, each.tokens, each.steps, each.seconds)
        for stratum, each in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.requests)[:MAX_STRATA])


def known_evidence(known: Iterable[KnownStratum]) -> ArmEvidence:
    """Return `known_strata` as evidence."""
    strata = {
        row.stratum: RequestSums(row.requests, row.tokens, row.steps, row.seconds) for row in known
    }
    return ArmEvidence(strata=strata)


def start_time_s(found: Iterable[Manifest], longest_s: float) -> float:
    """Median time from a pod's creation until it was ready, in seconds; 0 where none is known.

    Times above `longest_s`, within which a pod has to start, are of pods that were unready since.
    """
    times_s = []
    for pod in found:
        began, ready = time_of(pod["metadata"], "creationTimestamp"), condition(pod, "Ready")
        served = time_of(ready, "lastTransitionTime")
        if began and served and ready.get("status") == "True":
            times_s.append((served - began).total_seconds())
    return statistics.median([each for each in times_s if 0.0 <= each <= longest_s] or [0.0])


def startup_of(spec: Spec, pod_s: float) -> Startup:
    """Estimate how long a rollout takes, if each pod needs `pod_s` to start."""
    update, replicas = spec.update_strategy, max(1, spec.replicas)
    is_in_place = update.type == "InPlace"
    surge = _replicas(update.max_surge, replicas, 0 if is_in_place else 1, math.ceil)
    missing = _replicas(update.max_unavailable, replicas, 1 if is_in_place else 0, math.floor)
    return Startup(pod_s, math.ceil(replicas / max(1, surge + missing)) * pod_s)


def longest(one: Startup, other: Startup) -> Startup:
    """The longer times of two."""
    return Startup(max(one.pod_s, other.pod_s), max(one.all_s, other.all_s))


def block_s(restarts: Restarts, seed: int, pair: int, configured_s: float) -> float:
    """Length of both blocks of a pair: at least `TIMES_START` starts, and up to half longer.

    There are no probes: a short block would consist of restarts. The stretch is drawn as for other
    turns, so that no load with a fixed period stays aligned with the pairs.
    """
    stretch = 1.0 + turn_stretch(seed, pair + PROBE_PAIRS) - SHORTEST
    return least_block_s(restarts.startup, configured_s) * stretch


def least_block_s(startup: Startup, configured_s: float) -> float:
    """Least length of a block."""
    return max(configured_s, TIMES_START * startup.pod_s)


def pairs_needed(guard: Guard) -> int:
    """Pairs before which no comparison decides; alarms are earlier."""
    return max(guard.min_pairs, fewest_pairs(guard.promote_alpha))


def why_too_long(
    guard: Guard, timing: TrialTiming, startup: Startup, complete: int = 0, elapsed_s: float = 0.0
) -> str:
    """Why the pairs that are missing do not fit into the time that is left; empty if they do."""
    pairs = pairs_needed(guard) - complete
    least_s = least_block_s(startup, timing.block_s)
    period_s = startup.all_s + timing.warm_up_s + least_s
    needed_s = 2 * pairs * period_s
    if pairs <= 0 or needed_s <= timing.max_duration_s - elapsed_s:
        return ""
    total_s = math.ceil((elapsed_s + needed_s) / 60.0) * 60
    parts = f"{startup.all_s:.0f}s restart, {timing.warm_up_s:.0f}s warmUp, {least_s:.0f}s block"
    after = f" after {_written(elapsed_s)}" if elapsed_s else ""
    return (
        f"Switchback needs at least {pairs} pairs × 2 × {_written(period_s)} ({parts}) = "
        f"{_written(needed_s)}{after}, and guard.maxDuration is {_written(timing.max_duration_s)}; "
        f"raise it to {_written(total_s)} or more, or let a Canary of 5 or more pods decide "
        "(canary.replicas)"
    )


def interrupts(spec: Spec, is_without_room: bool) -> str:
    """Why a restart of the pods would leave none that serves; empty if some do.

    Args:
        is_without_room: whether the latest rollout found no room for a further pod.
    """
    update, replicas = spec.update_strategy, spec.replicas
    if update.type == "InPlace" and replicas == 1:
        return "updateStrategy InPlace stops the only pod before its replacement starts"
    missing = _replicas(update.max_unavailable, replicas, 0, math.floor)
    if update.type != "InPlace" and missing >= replicas:
        return f"updateStrategy.maxUnavailable lets all {replicas} pods stop at once"
    if update.type == "Auto" and is_without_room and replicas == 1:
        return "no node has room for a further pod, so the only pod stops before its replacement"
    return ""


def _written(seconds: float) -> str:
    """A duration as resources contain it: 90s, 10m, 1h30m."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def _replicas(
    limit: int | str | None, replicas: int, default: int, rounded: Callable[[float], int]
) -> int:
    return default if limit is None else replicas_of(limit, replicas, rounded)
