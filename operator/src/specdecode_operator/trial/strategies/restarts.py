"""Switchback with restarts: all pods of a resource run one configuration at a time, in blocks.

The Deployment itself is rolled to the configuration of each block, with its own update strategy, so
a trial needs no pods of its own. A block begins to count when all its pods serve and `warmUp` is
over. The order of each pair of blocks is drawn by `judge.turns`; what the pods did in a pair is one
observation. Nothing is known of an open pair after a restart of the operator: it is repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api import names
from specdecode_operator.judge.evidence import ArmEvidence, Role, pool
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.recording import close_pair
from specdecode_operator.judge.trial_evidence import TurnEvidence
from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.objects.resource import Resource, parse_stored
from specdecode_operator.objects.rollout import (
    Rollout,
    hash_of_template,
    rollout,
    template_annotations,
)
from specdecode_operator.trial.record.candidate import NOT_GUARDED
from specdecode_operator.trial.record.configuration import InForce
from specdecode_operator.trial.record.state import (
    NO_HALF,
    End,
    HalfPair,
    Period,
    Phase,
    Startup,
    Table,
    Trial,
    TrialOutcome,
)
from specdecode_operator.trial.strategies.block_pods import (
    does_not_start,
    in_block,
    is_of_block,
    pods_of_block,
    restarts_of,
    role_now,
    serving,
    stamp_of,
)
from specdecode_operator.trial.strategies.blocks import (
    block_s,
    known_evidence,
    longest,
    start_time_s,
    why_too_long,
)
from specdecode_operator.trial.strategies.context import TrialContext
from specdecode_operator.trial.strategies.counting import counted, cut
from specdecode_operator.trial.strategies.crossover import is_over, observed, outcome
from specdecode_operator.trial.strategies.early_alarms import noted, watched
from specdecode_operator.trial.strategies.guard import TrialTiming
from specdecode_operator.trial.strategies.placing import has_no_room, late, without_room

MAX_PODS = 8
"""Pods whose requests are counted."""


@dataclass(frozen=True, slots=True)
class Block:
    """What the stable pods run during a block."""

    resource: Resource
    table: Table
    """Tuned table over that of the spec; empty if there is none."""
    stamp: str
    """Distinguishes the pods of a block from those of the one before."""


def block_of(trial: Trial, stored: Trial | None, now: InForce, resource: Manifest) -> Block | None:
    """Return what the stable pods are to run; None for the configuration in force.

    Args:
        stored: the trial as stored; the candidate's pods must be explained by what is stored.
        resource: the custom resource.
    """
    if not in_block(trial):
        return None
    if role_now(trial) is Role.BASELINE:
        return Block(now.resource, now.tuned_table, stamp_of(trial))
    is_stored = stored is not None and stored.target.id == trial.target.id and in_block(stored)
    if not is_stored:
        return None
    hot = {name: value for name, value in resource["spec"].items() if name in NOT_GUARDED}
    spec: Mapping[str, Any] = {**(trial.target.spec or {}), **hot}
    return Block(parse_stored({**resource, "spec": spec}), {}, stamp_of(trial))


def step(trial: Trial, context: TrialContext) -> Trial:
    """The trial after what is seen now; an outcome where it ends."""
    if trial.phase is Phase.PREPARING:
        return _prepare(trial, context)
    if trial.is_paused:
        return _judged(trial, context) if is_over(trial, context) else trial
    if trial.period.began_s is None:
        trial = replace(trial, period=replace(trial.period, began_s=context.now_s))
    found = pods_of_block(trial, context) if role_now(trial) is Role.CANDIDATE else ()
    if broken := does_not_start(trial, context, found, "the candidate"):
        return replace(trial, outcome=broken)
    trial = watched(trial, context)
    if trial.outcome is not None:
        return trial
    if trial.period.placed_s is None:
        return _place(trial, context)
    return _measure(trial, context)


def is_tried(trial: Trial | None, pod: Manifest) -> bool:
    """Whether a stable pod runs the candidate of a trial, which answers for its errors."""
    if trial is None or trial.restarts is None or trial.phase is Phase.PROMOTING:
        return False
    return reading_pods.config_hash_of(pod) == trial.target.arm.config_hash


def is_settled(trial: Trial, context: TrialContext) -> bool:
    """Whether the pods of an ending trial run the configuration in force, or had their time."""
    live = context.observed.owned(DEPLOYMENT)
    if live is None:
        return False
    arm = trial.target.arm if trial.phase is Phase.PROMOTING else trial.old
    if names.ANNOTATION_BLOCK in template_annotations(live):
        return False
    if hash_of_template(live) != arm.config_hash:
        return False
    is_late = context.now_s - trial.since_s > context.startup_s
    return is_late or rollout(live) is Rollout.COMPLETE


def border_s(trial: Trial, timing: TrialTiming) -> float | None:
    """When the present block begins to count, or ends, in seconds since 1970; None: unknown yet."""
    restarts, period = restarts_of(trial), trial.period
    if period.counted_s is not None:
        return period.counted_s + block_s(restarts, trial.seed, period.pair, timing.block_s)
    return None if period.placed_s is None else period.placed_s + timing.warm_up_s


def _prepare(trial: Trial, context: TrialContext) -> Trial:
    """Count what the pods in force answer; the first block begins with new ones."""
    ready = context.ready(names.ROLE_STABLE, trial.old.config_hash)
    if context.snapshot is None or not ready:
        why = "" if ready else "no pod of the configuration in force serves"
        if is_over(trial, context):
            return replace(trial, outcome=TrialOutcome(End.INCONCLUSIVE, "NoPods", why))
        return replace(trial, blocked_by=why)
    trial = counted(trial, context, ready)
    restarts = noted(restarts_of(trial), trial, context, ready)
    if restarts is None:
        return replace(trial, blocked_by="counts what the configuration in force answers")
    return replace(
        trial,
        phase=Phase.MEASURING,
        since_s=context.now_s,
        restarts=restarts,
        ledgers={},
        blocked_by="",
    )


def _place(trial: Trial, context: TrialContext) -> Trial:
    """Wait until all pods of the block serve, and no other one does."""
    ready, wanted = serving(trial, context), context.spec.replicas
    if wanted == 0:
        trial = replace(trial, blocked_by="no replicas are wanted")
        return _judged(trial, context) if is_over(trial, context) else trial
    others = [pod for pod in context.pods(names.ROLE_STABLE) if not is_of_block(trial, pod)]
    if ready and len(ready) >= wanted and not others:
        period, now_s = trial.period, context.now_s
        pod_s = start_time_s(ready, context.startup_s)
        startup = longest(period.startup, Startup(pod_s, now_s - (period.began_s or now_s)))
        return replace(
            trial, period=replace(period, placed_s=now_s, startup=startup), blocked_by=""
        )
    if end := late(trial, context):
        return replace(trial, outcome=end)
    if has_no_room(trial, context):
        return without_room(trial, context)
    which = "the candidate" if role_now(trial) is Role.CANDIDATE else "the configuration in force"
    why = f"block {trial.period.number + 1}: {len(ready)} of {wanted} pods serve {which}"
    trial = replace(trial, blocked_by=why)
    return _judged(trial, context) if is_over(trial, context) else trial


def _measure(trial: Trial, context: TrialContext) -> Trial:
    snapshot, period = context.snapshot, trial.period
    if snapshot is None:
        return _judged(trial, context) if is_over(trial, context) else trial
    trial = counted(trial, context, serving(trial, context))
    if period.counted_s is None:
        if snapshot.at_s - (period.placed_s or snapshot.at_s) < context.timing.warm_up_s:
            return trial
        return cut(replace(trial, period=replace(period, counted_s=snapshot.at_s)))
    end_s = border_s(trial, context.timing)
    if end_s is not None and snapshot.at_s < end_s:
        return _judged(replace(trial, open=_with_known(trial, _half(trial))), context)
    return _closed(trial, context, snapshot.at_s)


def _closed(trial: Trial, context: TrialContext, at_s: float) -> Trial:
    """End a block; a pair counts when both of its blocks are complete."""
    period, half = trial.period, _half(trial)
    period_s = period.first_half_s + at_s - (period.counted_s or at_s)
    if period.number % 2 == 0:
        after = Period(
            period.number + 1, first_half_s=period_s, began_s=context.now_s, startup=period.startup
        )
        open_pair = _with_known(trial, half)
        trial = replace(trial, period=after, first_half=half, open=open_pair, ledgers={})
        return _judged(trial, context)
    closed = replace(
        trial,
        evidence=close_pair(_pairs(trial), half.baseline, half.candidate),
        measured_s=trial.measured_s + period_s,
        restarts=replace(restarts_of(trial), startup=period.startup),
        period=Period(period.number + 1, began_s=context.now_s),
        first_half=NO_HALF,
        open=NO_HALF,
        ledgers={},
    )
    return _judged_at_pair(closed, context)


def _judged_at_pair(trial: Trial, context: TrialContext) -> Trial:
    """Judge; where nothing is decided, the pairs that are missing must still fit."""
    judged = _judged(trial, context)
    if judged.outcome is not None:
        return judged
    complete, elapsed_s = len(_pairs(trial).pairs), trial.elapsed_s(context.now_s)
    startup = restarts_of(trial).startup
    if too_long := why_too_long(context.guard, context.timing, startup, complete, elapsed_s):
        end = TrialOutcome(End.INCONCLUSIVE, "TooLittleTime", too_long)
        return replace(judged, outcome=end)
    return judged


def _half(trial: Trial) -> HalfPair:
    """What the pods did in the open pair, restarts and warm-up left out."""
    arms: dict[Role, list[ArmEvidence]] = {
        Role.BASELINE: [trial.first_half.baseline],
        Role.CANDIDATE: [trial.first_half.candidate],
    }
    role = role_now(trial)
    arm = trial.target.arm if role is Role.CANDIDATE else trial.old
    if trial.period.counted_s is not None:
        arms[role] += [each.cut()[1].get(arm, ArmEvidence()) for each in trial.ledgers.values()]
    return HalfPair(pool(arms[Role.BASELINE]), pool(arms[Role.CANDIDATE]))


def _with_known(trial: Trial, half: HalfPair) -> HalfPair:
    """The open pair for alarms: until a pair is complete, with the baseline before the trial."""
    if _pairs(trial).pairs:
        return half
    return replace(half, baseline=pool((known_evidence(restarts_of(trial).known), half.baseline)))


def _judged(trial: Trial, context: TrialContext) -> Trial:
    """Judge complete pairs, and the open one for alarms."""
    judgement = judge_turns(observed(trial), context.guard, trial.elapsed_s(context.now_s))
    end = outcome(judgement.verdict, judgement.reason, judgement.message)
    return replace(trial, judgement=judgement, outcome=end)


def _pairs(trial: Trial) -> TurnEvidence:
    assert isinstance(trial.evidence, TurnEvidence), "a trial in turns has evidence by pairs"
    return trial.evidence
