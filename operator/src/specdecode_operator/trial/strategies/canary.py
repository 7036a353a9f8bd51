"""Trials with pods of their own: a canary, and as many fresh pods of the old configuration.

The Service selects all of them, so traffic goes by the number of pods. Fresh pods, because caches
that have served for days would flatter the old configuration; where no node takes them, the pods
that serve anyway stand in. Readings of other pods are not counted.
What each pod did is summed by windows of time; the open window is kept in memory. Before the first
window, from the first pod of the candidate on that serves, only what is broken ends the trial.
"""

from dataclasses import replace

from specdecode_api import names
from specdecode_operator.judge.evidence import ArmEvidence, Role
from specdecode_operator.judge.judge import judge_pods
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.recording import close_window
from specdecode_operator.judge.trial_evidence import MAX_WINDOWS, PodEvidence
from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.objects.rollout import Rollout, hash_of_template, rollout
from specdecode_operator.trial.record.state import End, Phase, Trial, TrialOutcome
from specdecode_operator.trial.strategies.block_pods import candidate_trouble, does_not_start
from specdecode_operator.trial.strategies.context import TrialContext, uid_of
from specdecode_operator.trial.strategies.counting import counted, cut
from specdecode_operator.trial.strategies.crossover import is_over, outcome
from specdecode_operator.trial.strategies.guard import TrialTiming


def step(trial: Trial, context: TrialContext) -> Trial:
    """The trial after what is seen now; an outcome where it ends."""
    found = context.pods(names.ROLE_CANARY)
    if broken := does_not_start(trial, context, found, "the canary"):
        return replace(trial, outcome=broken)
    if trial.phase is Phase.MEASURING:
        return _measure(trial, context)
    trial = _watched(trial, context)
    if trial.outcome is not None:
        return trial
    return _prepare(trial, context) if trial.phase is Phase.PREPARING else _warm_up(trial, context)


def is_settled(trial: Trial, context: TrialContext) -> bool:
    """Whether the pods of the resource run what was promoted, or had their time.

    A candidate's pods just go.
    """
    if trial.phase is Phase.ROLLING_BACK:
        return True
    live = context.observed.owned(DEPLOYMENT)
    if live is None:
        return False
    is_new = hash_of_template(live) == trial.target.arm.config_hash
    is_late = context.now_s - trial.since_s > context.startup_s
    return is_new and (is_late or rollout(live) is Rollout.COMPLETE)


def baseline_role(trial: Trial) -> str:
    """Role of the pods that a canary is compared with now.

    Fresh pods start with the canary. Until all of them serve, the pods that serve anyway stand in.
    """
    is_fresh = trial.has_fresh_baseline and trial.phase is not Phase.PREPARING
    return names.ROLE_BASELINE if is_fresh else names.ROLE_STABLE


def _watched(trial: Trial, context: TrialContext) -> Trial:
    """Count what is answered before anything is measured; an outcome if the candidate is broken."""
    if trial.is_paused or context.snapshot is None:
        return trial
    trial = counted(trial, context, _arms(trial, context), trial.started_s)
    seen = _with_window(trial, PodEvidence())
    judgement = judge_pods(seen, context.guard, trial.elapsed_s(context.now_s))
    if judgement.verdict is not Verdict.ROLL_BACK:
        return trial
    end = outcome(judgement.verdict, judgement.reason, judgement.message)
    return replace(trial, evidence=seen, judgement=judgement, outcome=end)


def _prepare(trial: Trial, context: TrialContext) -> Trial:
    canaries = context.ready(names.ROLE_CANARY, trial.target.arm.config_hash)
    missing = context.canary_replicas - len(canaries)
    late = context.now_s - trial.since_s > context.startup_s
    if missing > 0:
        trouble = candidate_trouble(trial, context, context.pods(names.ROLE_CANARY))
        why = trouble.message if trouble else "it starts"
        why = f"{missing} of {context.canary_replicas} canary pods do not serve yet: {why}"
        if late or is_over(trial, context):
            end = End.ROLLED_BACK if trouble and trouble.is_error else End.INCONCLUSIVE
            return replace(trial, outcome=TrialOutcome(end, "CanaryNotReady", why))
        return replace(trial, blocked_by=why)
    if trial.has_fresh_baseline and not _has_fresh(trial, context):
        if not late and not _lacks_room(context):
            return replace(trial, blocked_by="fresh pods of the old configuration do not serve yet")
        trial = replace(trial, has_fresh_baseline=False)
    return replace(trial, phase=Phase.WARMING_UP, since_s=context.now_s, blocked_by="")


def _has_fresh(trial: Trial, context: TrialContext) -> bool:
    fresh = context.ready(names.ROLE_BASELINE, trial.old.config_hash)
    return len(fresh) >= context.canary_replicas


def _lacks_room(context: TrialContext) -> bool:
    trouble = reading_pods.trouble(context.pods(names.ROLE_BASELINE), None, {}, context.observed.at)
    return trouble is not None


def _warm_up(trial: Trial, context: TrialContext) -> Trial:
    """Wait; the first reading afterwards is where counting begins."""
    if context.now_s - trial.since_s < context.timing.warm_up_s or context.snapshot is None:
        return trial
    arms = _arms(trial, context)
    uids = {uid_of(pod) for pod in arms}
    known = {uid: ledger for uid, ledger in trial.ledgers.items() if uid in uids}
    return replace(
        cut(counted(replace(trial, ledgers=known), context, arms)),
        phase=Phase.MEASURING,
        since_s=context.now_s,
        window_s=context.now_s,
        evidence=PodEvidence(),
        blocked_by="",
    )


def _measure(trial: Trial, context: TrialContext) -> Trial:
    if trial.is_paused or (context.snapshot is None and not is_over(trial, context)):
        return trial
    if context.snapshot is not None:
        trial = counted(trial, context, _arms(trial, context))
    is_complete = context.now_s - trial.window_s >= window_length_s(context.timing)
    seen = _with_window(trial, _by_pod(trial))
    judged = seen if is_complete else _without_window(seen, trial.window)
    judgement = judge_pods(judged, context.guard, context.now_s - trial.since_s - trial.paused_s)
    end = outcome(judgement.verdict, judgement.reason, judgement.message)
    if (
        not is_complete
        and not is_over(trial, context)
        and (end is None or end.end is not End.ROLLED_BACK)
    ):
        return replace(trial, blocked_by=_silence(context))
    closed = replace(
        cut(trial),
        evidence=seen,
        window=trial.window + 1,
        window_s=context.now_s,
        measured_s=trial.measured_s + context.now_s - trial.window_s,
    )
    why = _silence(context) if judgement.verdict is Verdict.NO_DATA else ""
    return replace(closed, judgement=judgement, blocked_by=why, outcome=end)


def _without_window(seen: PodEvidence, number: int) -> PodEvidence:
    """In an open window only alarms count, which go by sums."""
    pods = (
        replace(pod, windows=tuple(each for each in pod.windows if each.number != number))
        for pod in seen.pods
    )
    return replace(seen, pods=tuple(pods))


def border_s(trial: Trial, timing: TrialTiming) -> float | None:
    """When the warm-up or the open window ends, in seconds since 1970; None before."""
    if trial.phase is Phase.WARMING_UP:
        return trial.since_s + timing.warm_up_s
    return trial.window_s + window_length_s(timing) if trial.phase is Phase.MEASURING else None


def window_length_s(timing: TrialTiming) -> float:
    """Length of a window, by which a whole trial has fewer windows than are kept."""
    return timing.max_duration_s / (MAX_WINDOWS * 3 // 4)


def _with_window(trial: Trial, evidence: PodEvidence) -> PodEvidence:
    """The evidence with the open window of each pod."""
    found: dict[str, tuple[Role, ArmEvidence]] = {}
    for uid, ledger in trial.ledgers.items():
        block = ledger.cut()[1]
        for role, arm in ((Role.BASELINE, trial.old), (Role.CANDIDATE, trial.target.arm)):
            if arm in block:
                found[uid] = (role, replace(block[arm], pods=1))
    return close_window(evidence, trial.window, found)


def _by_pod(trial: Trial) -> PodEvidence:
    assert isinstance(trial.evidence, PodEvidence), "arms on separate pods have evidence by pod"
    return trial.evidence


def _silence(context: TrialContext) -> str:
    failures = context.snapshot.failures if context.snapshot else {}
    return "; ".join(f"{pod}: {why}" for pod, why in list(failures.items())[:3])


def _arms(trial: Trial, context: TrialContext) -> tuple[Manifest, ...]:
    """Pods whose requests count."""
    return (
        *context.pods(names.ROLE_CANARY),
        *(
            pod
            for pod in context.pods(baseline_role(trial))
            if reading_pods.config_hash_of(pod) == trial.old.config_hash
        ),
    )
