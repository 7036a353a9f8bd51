"""Trials with pods of their own: a canary, and as many fresh pods of the old configuration.

The Service selects all of them, so traffic goes by the number of pods. Fresh pods, because caches
that have served for days would flatter the old configuration; where no node takes them, the pods
that serve anyway stand in. Readings of other pods are not counted.
What each pod did is summed by windows of time; the open window is kept in memory.
"""

from dataclasses import replace

from specdecode_api import names
from specdecode_operator import pods as reading_pods
from specdecode_operator.fleet import Ledger
from specdecode_operator.judge.evidence import ArmEvidence, Role
from specdecode_operator.judge.judge import judge_pods
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.trial_evidence import MAX_WINDOWS, PodEvidence, close_window
from specdecode_operator.kinds import Manifest
from specdecode_operator.trial.crossover import is_over, ruling
from specdecode_operator.trial.scene import Scene
from specdecode_operator.trial.state import End, Phase, Ruling, Trial

MAX_RESTARTS = 2
"""Of a canary before it serves: an engine that ends this often will not start at all."""


def step(trial: Trial, scene: Scene) -> Trial:
    """The trial after what is seen now; a ruling where it ends."""
    if broken := _broken(trial, scene):
        return replace(trial, ruling=broken)
    match trial.phase:
        case Phase.PREPARING:
            return _prepare(trial, scene)
        case Phase.WARMING_UP:
            return _warm_up(trial, scene)
        case _:
            return _measure(trial, scene)


def _broken(trial: Trial, scene: Scene) -> Ruling | None:
    """A canary that cannot start is worse than any figure."""
    found = scene.pods(names.ROLE_CANARY)
    failing = [pod for pod in found if reading_pods.restarts(pod) >= MAX_RESTARTS]
    trouble = reading_pods.trouble(failing, trial.target.arm.config_hash, {}, scene.observed.at)
    if trouble is None or not trouble.is_error:
        return None
    return Ruling(End.ROLLED_BACK, trouble.reason, f"the canary does not start: {trouble.message}")


def _prepare(trial: Trial, scene: Scene) -> Trial:
    canaries = scene.ready(names.ROLE_CANARY, trial.target.arm.config_hash)
    missing = scene.canary_replicas - len(canaries)
    late = scene.now_s - trial.since_s > scene.startup_s
    if missing > 0:
        trouble = reading_pods.trouble(
            scene.pods(names.ROLE_CANARY), trial.target.arm.config_hash, {}, scene.observed.at
        )
        why = trouble.message if trouble else "it starts"
        hold = f"{missing} of {scene.canary_replicas} canary pods do not serve yet: {why}"
        if late or is_over(trial, scene):
            end = End.ROLLED_BACK if trouble and trouble.is_error else End.INCONCLUSIVE
            return replace(trial, ruling=Ruling(end, "CanaryNotReady", hold))
        return replace(trial, hold=hold)
    if trial.has_fresh_baseline and not _has_fresh(trial, scene):
        if not late and not _lacks_room(scene):
            return replace(trial, hold="fresh pods of the old configuration do not serve yet")
        trial = replace(trial, has_fresh_baseline=False)
    return replace(trial, phase=Phase.WARMING_UP, since_s=scene.now_s, hold="")


def _has_fresh(trial: Trial, scene: Scene) -> bool:
    fresh = scene.ready(names.ROLE_BASELINE, trial.old.config_hash)
    return len(fresh) >= scene.canary_replicas


def _lacks_room(scene: Scene) -> bool:
    trouble = reading_pods.trouble(scene.pods(names.ROLE_BASELINE), None, {}, scene.observed.at)
    return trouble is not None


def _warm_up(trial: Trial, scene: Scene) -> Trial:
    """Wait; the first reading afterwards is where counting begins."""
    if scene.now_s - trial.since_s < scene.pace.warm_up_s or scene.sight is None:
        return trial
    begun = _cut(_counted(trial, scene))
    return replace(
        begun,
        phase=Phase.MEASURING,
        since_s=scene.now_s,
        window_s=scene.now_s,
        evidence=PodEvidence(),
        hold="",
    )


def _counted(trial: Trial, scene: Scene) -> Trial:
    """Count what is new of every pod whose requests count."""
    ledgers = dict(trial.ledgers)
    for reading in scene.readings(_arms(trial, scene)):
        known = ledgers.get(reading.pod_uid)
        if known is None:
            known = Ledger.begin(scene.now_s, (trial.old, trial.target.arm))
        ledgers[reading.pod_uid] = known.take([reading])
    return replace(trial, ledgers=ledgers)


def _measure(trial: Trial, scene: Scene) -> Trial:
    if trial.is_paused or (scene.sight is None and not is_over(trial, scene)):
        return trial
    if scene.sight is not None:
        trial = _counted(trial, scene)
    is_complete = scene.now_s - trial.window_s >= window_length_s(scene)
    seen = _with_window(trial)
    # In an open window only alarms count, which go by the sums over all pods.
    judged = seen if is_complete else replace(seen, pods=_by_pod(trial).pods)
    judgement = judge_pods(judged, scene.guard, scene.now_s - trial.since_s - trial.paused_s)
    end = ruling(judgement.verdict, judgement.reason, judgement.message)
    if (
        not is_complete
        and not is_over(trial, scene)
        and (end is None or end.end is not End.ROLLED_BACK)
    ):
        return replace(trial, hold=_silence(scene))
    closed = replace(
        _cut(trial),
        evidence=seen,
        window=trial.window + 1,
        window_s=scene.now_s,
        measured_s=trial.measured_s + scene.now_s - trial.window_s,
    )
    hold = _silence(scene) if judgement.verdict is Verdict.NO_DATA else ""
    return replace(closed, judgement=judgement, hold=hold, ruling=end)


def window_length_s(scene: Scene) -> float:
    """Length of a window, by which a whole trial has fewer windows than are kept."""
    return scene.pace.max_duration_s / (MAX_WINDOWS * 3 // 4)


def _cut(trial: Trial) -> Trial:
    return replace(trial, ledgers={uid: ledger.cut()[0] for uid, ledger in trial.ledgers.items()})


def _with_window(trial: Trial) -> PodEvidence:
    """The evidence with the open window of each pod."""
    found: dict[str, tuple[Role, ArmEvidence]] = {}
    for uid, ledger in trial.ledgers.items():
        block = ledger.cut()[1]
        for role, arm in ((Role.BASELINE, trial.old), (Role.CANDIDATE, trial.target.arm)):
            if arm in block:
                found[uid] = (role, replace(block[arm], pods=1))
    return close_window(_by_pod(trial), trial.window, found)


def _by_pod(trial: Trial) -> PodEvidence:
    assert isinstance(trial.evidence, PodEvidence), "arms on separate pods have evidence by pod"
    return trial.evidence


def _silence(scene: Scene) -> str:
    failures = scene.sight.failures if scene.sight else {}
    return "; ".join(f"{pod}: {why}" for pod, why in list(failures.items())[:3])


def _arms(trial: Trial, scene: Scene) -> tuple[Manifest, ...]:
    """Pods whose requests count."""
    role = names.ROLE_BASELINE if trial.has_fresh_baseline else names.ROLE_STABLE
    return (
        *scene.pods(names.ROLE_CANARY),
        *(
            pod
            for pod in scene.pods(role)
            if reading_pods.config_hash_of(pod) == trial.old.config_hash
        ),
    )
