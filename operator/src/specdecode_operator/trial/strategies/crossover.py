"""Trials in place: pods take turns with two tables, and each is compared with itself.

Of several pods one half begins with the old table and one with the new, so both are under the same
load at any time; the only pod of a resource takes its turns one after the other. The order of each
pair is drawn by `judge.turns`. A turn begins to count when every pod reports its table and the
washout is over; engines count requests by table. Pods that join or leave end the open pair.
"""

from collections.abc import Mapping
from dataclasses import replace

from specdecode_api import names
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey, Role, pool
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.recording import (
    abandon_pair,
    close_pair,
    compare_with,
    observe_open,
)
from specdecode_operator.judge.trial_evidence import TurnEvidence
from specdecode_operator.judge.turns import (
    pods_in_pair,
    role_in_turn,
    turn_stretch,
    washout_stretch,
)
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.pods import config_hash_of
from specdecode_operator.trial.record.state import (
    NO_HALF,
    End,
    HalfPair,
    Kind,
    Period,
    Phase,
    Trial,
    TrialOutcome,
)
from specdecode_operator.trial.strategies.blocks import known_evidence
from specdecode_operator.trial.strategies.context import TrialContext, name_of, uid_of
from specdecode_operator.trial.strategies.counting import counted, cut

MAX_PODS = 8
"""Pods that take turns, an even number of several."""
PATIENCE_S = 300.0
"""How long pods may take to come to their tables, at the begin and at the end."""


def role_in(trial: Trial, uid: str) -> Role | None:
    """Role of a pod in the present turn; None for one that takes no turns."""
    if uid not in trial.pods:
        return None
    period = trial.period
    return role_in_turn(trial.seed, period.pair, period.number % 2, trial.pods.index(uid))


def arm_of(trial: Trial, uid: str) -> ArmKey:
    """What a stable pod should run now."""
    if trial.phase is Phase.PROMOTING:
        return trial.target.arm
    if trial.is_paused:
        return trial.old
    if trial.phase is Phase.MEASURING and role_in(trial, uid) is Role.CANDIDATE:
        return trial.target.arm
    return trial.old


def block_s(trial: Trial, configured_s: float) -> float:
    """Length of the turns of the present pair without their washout."""
    return configured_s * turn_stretch(trial.seed, trial.period.pair)


def washout_s(trial: Trial, configured_s: float) -> float:
    """Time at the start of the turns of the present pair that is not counted."""
    return configured_s * washout_stretch(trial.period.pair)


def step(trial: Trial, context: TrialContext) -> Trial:
    """The trial after what is seen now; an outcome where it ends."""
    if refusal := _refusal(trial, context):
        return replace(
            trial, outcome=TrialOutcome(End.INCONCLUSIVE, "NeedsRestart", refusal), judgement=None
        )
    match trial.phase:
        case Phase.PREPARING:
            return _prepare(trial, context)
        case _:
            return _measure(trial, context)


def settled(trial: Trial, context: TrialContext) -> Trial:
    """The trial with the pods that reported the last table at this look."""
    arm = arm_of(trial, "")
    stable = context.ready(names.ROLE_STABLE, trial.old.config_hash)
    found = {uid_of(pod) for pod in stable if context.runs(pod, arm)}
    return replace(trial, settled=trial.settled | found)


def is_settled_on(trial: Trial, pod: Manifest) -> bool:
    """Whether an ending trial needs nothing more of a pod."""
    is_old = config_hash_of(pod) == trial.old.config_hash
    return not is_old or uid_of(pod) in trial.settled


def is_settled(trial: Trial, context: TrialContext) -> bool:
    """Whether an ending trial has left its last table everywhere, or has waited long enough."""
    stable = context.ready(names.ROLE_STABLE, trial.old.config_hash)
    is_late = context.now_s - trial.since_s > PATIENCE_S
    return is_late or all(is_settled_on(trial, pod) for pod in stable)


def is_over(trial: Trial, context: TrialContext) -> bool:
    """Whether a trial has had its time."""
    return trial.elapsed_s(context.now_s) >= context.timing.max_duration_s


def outcome(verdict: Verdict, reason: str, message: str) -> TrialOutcome | None:
    """What a verdict means for a trial; None where it continues."""
    ends = {
        Verdict.PROMOTE: End.PROMOTED,
        Verdict.ROLL_BACK: End.ROLLED_BACK,
        Verdict.INCONCLUSIVE: End.INCONCLUSIVE,
    }
    return TrialOutcome(ends[verdict], reason, message) if verdict in ends else None


def _refusal(trial: Trial, context: TrialContext) -> str:
    refusals: Mapping[str, str] = context.snapshot.refusals if context.snapshot else {}
    taking = [pod for pod in context.pods(names.ROLE_STABLE) if uid_of(pod) in trial.pods]
    found = (refusals[name_of(pod)] for pod in taking if name_of(pod) in refusals)
    return next(found, "")


def _prepare(trial: Trial, context: TrialContext) -> Trial:
    serving = len(context.ready(names.ROLE_STABLE, trial.old.config_hash))
    needed = 1 if trial.kind is Kind.SWITCHBACK else 2
    if serving >= needed:
        taking = _participants(trial, context)
        return replace(
            trial, phase=Phase.MEASURING, since_s=context.now_s, pods=taking, blocked_by=""
        )
    why = f"{serving} of the {needed} pods that are needed serve"
    if is_over(trial, context):
        return replace(trial, outcome=TrialOutcome(End.INCONCLUSIVE, "NoPods", why))
    return replace(trial, blocked_by=why)


def _participants(trial: Trial, context: TrialContext) -> tuple[str, ...]:
    """Pods of the next pair: those that were there keep their place."""
    found = [uid_of(pod) for pod in context.ready(names.ROLE_STABLE, trial.old.config_hash)]
    if trial.kind is Kind.SWITCHBACK:
        return tuple(found[:1])
    kept = [uid for uid in trial.pods if uid in found]
    taking = [*kept, *(uid for uid in found if uid not in kept)]
    return tuple(taking[: pods_in_pair(trial.period.pair, min(len(taking), MAX_PODS))])


def _measure(trial: Trial, context: TrialContext) -> Trial:
    snapshot = context.snapshot
    if snapshot is None or trial.is_paused:
        return _judged(trial, context) if is_over(trial, context) else trial
    taking = _taking(trial, context)
    if len(taking) < len(trial.pods) or not taking:
        return _judged(_next_pair(_abandoned(trial), context), context)
    period = trial.period
    if period.placed_s is None:
        return _judged(_placed(trial, context, taking), context)
    trial = counted(trial, context, taking)
    if period.counted_s is None:
        if snapshot.at_s - period.placed_s < washout_s(trial, context.timing.washout_s):
            return trial
        return cut(replace(trial, period=replace(period, counted_s=snapshot.at_s)))
    if snapshot.at_s - period.counted_s < block_s(trial, context.timing.block_s):
        return _judged(replace(trial, open=_half(trial)), context)
    return _judged(_closed(trial, context, snapshot.at_s), context)


def _taking(trial: Trial, context: TrialContext) -> tuple[Manifest, ...]:
    ready = context.ready(names.ROLE_STABLE, trial.old.config_hash)
    return tuple(pod for pod in ready if uid_of(pod) in trial.pods)


def _placed(trial: Trial, context: TrialContext, taking: tuple[Manifest, ...]) -> Trial:
    waiting = [name_of(pod) for pod in taking if not context.runs(pod, arm_of(trial, uid_of(pod)))]
    if waiting:
        return replace(trial, blocked_by=f"waiting for the table of {', '.join(waiting)}")
    period = replace(trial.period, placed_s=context.now_s)
    return counted(replace(trial, period=period, blocked_by=""), context, taking)


def _closed(trial: Trial, context: TrialContext, at_s: float) -> Trial:
    """End a turn; a pair counts when both of its turns are complete."""
    period, half = trial.period, _half(trial)
    period_s = period.first_half_s + at_s - (period.counted_s or at_s)
    if period.number % 2 == 0:
        after = Period(period.number + 1, first_half_s=period_s)
        return replace(cut(trial), open=half, first_half=half, period=after)
    evidence = close_pair(_in_turns(trial), half.baseline, half.candidate)
    closed = replace(trial, evidence=evidence, measured_s=trial.measured_s + period_s)
    return _next_pair(closed, context)


def _half(trial: Trial) -> HalfPair:
    """What pods did in the open pair, washouts left out."""
    arms: dict[Role, list[ArmEvidence]] = {
        Role.BASELINE: [trial.first_half.baseline],
        Role.CANDIDATE: [trial.first_half.candidate],
    }
    if trial.period.counted_s is not None:
        for uid, ledger in trial.ledgers.items():
            role = role_in(trial, uid)
            if role is not None:
                arm = trial.target.arm if role is Role.CANDIDATE else trial.old
                arms[role].append(ledger.cut()[1].get(arm, ArmEvidence()))
    return HalfPair(pool(arms[Role.BASELINE]), pool(arms[Role.CANDIDATE]))


def observed(trial: Trial) -> TurnEvidence:
    """Complete pairs and what is known of the open one; of the baseline before, by restart."""
    found = _in_turns(trial)
    if trial.open != NO_HALF:
        found = observe_open(found, trial.open.baseline, trial.open.candidate)
    if trial.restarts is None:
        return found
    return compare_with(found, known_evidence(trial.restarts.history))


def _abandoned(trial: Trial) -> Trial:
    """Give up the open pair: its failures count, its times do not."""
    evidence = abandon_pair(observed(replace(trial, open=_half(trial))))
    return replace(trial, evidence=evidence)


def _next_pair(trial: Trial, context: TrialContext) -> Trial:
    """Continue with the next pair; pods may join."""
    after = replace(
        trial, period=Period(2 * (trial.period.pair + 1)), first_half=NO_HALF, open=NO_HALF
    )
    taking = _participants(after, context)
    return replace(
        after,
        pods=taking or after.pods,
        ledgers={},
        blocked_by="" if taking else "no pod of the old configuration serves",
    )


def _in_turns(trial: Trial) -> TurnEvidence:
    assert isinstance(trial.evidence, TurnEvidence), "a trial in turns has evidence by pairs"
    return trial.evidence


def _judged(trial: Trial, context: TrialContext) -> Trial:
    """Judge complete pairs, and the open one for alarms."""
    judgement = judge_turns(observed(trial), context.guard, trial.elapsed_s(context.now_s))
    end = outcome(judgement.verdict, judgement.reason, judgement.message)
    return replace(trial, judgement=judgement, outcome=end)
