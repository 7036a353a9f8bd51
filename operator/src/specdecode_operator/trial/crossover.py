"""Trials in place: pods take turns with two tables, and each is compared with itself.

Of several pods one half begins with the old table and one with the new, so both are under the same
load at any time; the only pod of a resource takes its turns one after the other. The order of each
pair is drawn by `judge.turns`. A turn begins to count when every pod reports its table and the
washout is over; engines count requests by table. Pods that join or leave end the open pair.
"""

from collections.abc import Mapping
from dataclasses import replace

from specdecode_api import names
from specdecode_operator.fleet import Ledger
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey, Role
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.pooled import pool
from specdecode_operator.judge.trial_evidence import (
    TurnEvidence,
    abandon_pair,
    close_pair,
    observe_open,
)
from specdecode_operator.judge.turns import pods_in_pair, role_in_turn, turn_stretch
from specdecode_operator.kinds import Manifest
from specdecode_operator.trial.scene import Scene, name_of, uid_of
from specdecode_operator.trial.state import NO_HALF, End, HalfPair, Kind, Phase, Ruling, Trial, Turn

MAX_PODS = 8
"""Pods that take turns, an even number of several."""
PATIENCE_S = 300.0
"""How long pods may take to come to their tables, at the begin and at the end."""


def role_in(trial: Trial, uid: str) -> Role | None:
    """Role of a pod in the present turn; None for one that takes no turns."""
    if uid not in trial.pods:
        return None
    turn = trial.turn
    return role_in_turn(trial.seed, turn.pair, turn.number % 2, trial.pods.index(uid))


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
    return configured_s * turn_stretch(trial.seed, trial.turn.pair)


def step(trial: Trial, scene: Scene) -> Trial:
    """The trial after what is seen now; a ruling where it ends."""
    if refusal := _refusal(trial, scene):
        return replace(
            trial, ruling=Ruling(End.INCONCLUSIVE, "NeedsRestart", refusal), judgement=None
        )
    match trial.phase:
        case Phase.PREPARING:
            return _prepare(trial, scene)
        case _:
            return _measure(trial, scene)


def is_settled(trial: Trial, scene: Scene) -> bool:
    """Whether an ending trial has left its last table everywhere, or has waited long enough."""
    arm = arm_of(trial, "")
    stable = scene.ready(names.ROLE_STABLE, trial.old.config_hash)
    is_late = scene.now_s - trial.since_s > PATIENCE_S
    return is_late or (scene.sight is not None and all(scene.runs(pod, arm) for pod in stable))


def is_over(trial: Trial, scene: Scene) -> bool:
    """Whether a trial has had its time."""
    return trial.elapsed_s(scene.now_s) >= scene.pace.max_duration_s


def ruling(verdict: Verdict, reason: str, message: str) -> Ruling | None:
    """What a verdict means for a trial; None where it goes on."""
    ends = {
        Verdict.PROMOTE: End.PROMOTED,
        Verdict.ROLL_BACK: End.ROLLED_BACK,
        Verdict.INCONCLUSIVE: End.INCONCLUSIVE,
    }
    return Ruling(ends[verdict], reason, message) if verdict in ends else None


def _refusal(trial: Trial, scene: Scene) -> str:
    refusals: Mapping[str, str] = scene.sight.refusals if scene.sight else {}
    taking = [pod for pod in scene.pods(names.ROLE_STABLE) if uid_of(pod) in trial.pods]
    found = (refusals[name_of(pod)] for pod in taking if name_of(pod) in refusals)
    return next(found, "")


def _prepare(trial: Trial, scene: Scene) -> Trial:
    taking = _participants(trial, scene)
    needed = 1 if trial.kind is Kind.SWITCHBACK else 2
    if len(taking) >= needed:
        return replace(trial, phase=Phase.MEASURING, since_s=scene.now_s, pods=taking, hold="")
    hold = f"{len(taking)} of the {needed} pods that are needed serve"
    if is_over(trial, scene):
        return replace(trial, ruling=Ruling(End.INCONCLUSIVE, "NoPods", hold))
    return replace(trial, hold=hold)


def _participants(trial: Trial, scene: Scene) -> tuple[str, ...]:
    """Pods of the next pair: those that were there keep their place."""
    found = [uid_of(pod) for pod in scene.ready(names.ROLE_STABLE, trial.old.config_hash)]
    if trial.kind is Kind.SWITCHBACK:
        return tuple(found[:1])
    kept = [uid for uid in trial.pods if uid in found]
    taking = [*kept, *(uid for uid in found if uid not in kept)]
    return tuple(taking[: pods_in_pair(trial.turn.pair, min(len(taking), MAX_PODS))])


def _measure(trial: Trial, scene: Scene) -> Trial:
    sight = scene.sight
    if sight is None or trial.is_paused:
        return _judged(trial, scene) if is_over(trial, scene) else trial
    taking = _taking(trial, scene)
    if len(taking) < len(trial.pods) or not taking:
        return _judged(_next_pair(_abandoned(trial), scene), scene)
    turn = trial.turn
    if turn.placed_s is None:
        return _judged(_placed(trial, scene, taking), scene)
    trial = _counted(trial, scene, taking)
    if turn.counted_s is None:
        if sight.at_s - turn.placed_s < scene.pace.washout_s:
            return trial
        return _cut(replace(trial, turn=replace(turn, counted_s=sight.at_s)))
    if sight.at_s - turn.counted_s < block_s(trial, scene.pace.block_s):
        return _judged(replace(trial, open=_half(trial)), scene)
    return _judged(_closed(trial, scene, sight.at_s), scene)


def _taking(trial: Trial, scene: Scene) -> tuple[Manifest, ...]:
    ready = scene.ready(names.ROLE_STABLE, trial.old.config_hash)
    return tuple(pod for pod in ready if uid_of(pod) in trial.pods)


def _placed(trial: Trial, scene: Scene, taking: tuple[Manifest, ...]) -> Trial:
    waiting = [name_of(pod) for pod in taking if not scene.runs(pod, arm_of(trial, uid_of(pod)))]
    if waiting:
        return replace(trial, hold=f"waiting for the table of {', '.join(waiting)}")
    turn = replace(trial.turn, placed_s=scene.now_s)
    return _counted(replace(trial, turn=turn, hold=""), scene, taking)


def _counted(trial: Trial, scene: Scene, taking: tuple[Manifest, ...]) -> Trial:
    ledgers = dict(trial.ledgers)
    for reading in scene.readings(taking):
        # From the first reading on: what came before was not of this trial.
        ledger = ledgers.get(reading.pod_uid)
        if ledger is None:
            ledger = Ledger.begin(scene.now_s, (trial.old, trial.target.arm))
        ledgers[reading.pod_uid] = ledger.take([reading])
    return replace(trial, ledgers=ledgers)


def _cut(trial: Trial) -> Trial:
    """Leave out what was seen so far."""
    return replace(trial, ledgers={uid: ledger.cut()[0] for uid, ledger in trial.ledgers.items()})


def _closed(trial: Trial, scene: Scene, at_s: float) -> Trial:
    """End a turn; a pair counts when both of its turns are complete."""
    turn, half = trial.turn, _half(trial)
    turn_s = turn.first_half_s + at_s - (turn.counted_s or at_s)
    if turn.number % 2 == 0:
        after = Turn(turn.number + 1, first_half_s=turn_s)
        return replace(_cut(trial), open=half, first_half=half, turn=after)
    evidence = close_pair(_in_turns(trial), half.baseline, half.candidate)
    closed = replace(trial, evidence=evidence, measured_s=trial.measured_s + turn_s)
    return _next_pair(closed, scene)


def _half(trial: Trial) -> HalfPair:
    """What pods did in the open pair, washouts left out."""
    arms: dict[Role, list[ArmEvidence]] = {
        Role.BASELINE: [trial.first_half.baseline],
        Role.CANDIDATE: [trial.first_half.candidate],
    }
    if trial.turn.counted_s is not None:
        for uid, ledger in trial.ledgers.items():
            role = role_in(trial, uid)
            if role is not None:
                arm = trial.target.arm if role is Role.CANDIDATE else trial.old
                arms[role].append(ledger.cut()[1].get(arm, ArmEvidence()))
    return HalfPair(pool(arms[Role.BASELINE]), pool(arms[Role.CANDIDATE]))


def observed(trial: Trial) -> TurnEvidence:
    """Complete pairs and what is known of the open one."""
    if trial.open == NO_HALF:
        return _in_turns(trial)
    return observe_open(_in_turns(trial), trial.open.baseline, trial.open.candidate)


def _abandoned(trial: Trial) -> Trial:
    """Give up the open pair: its failures count, its times do not."""
    evidence = abandon_pair(observed(replace(trial, open=_half(trial))))
    return replace(trial, evidence=evidence)


def _next_pair(trial: Trial, scene: Scene) -> Trial:
    """Go on to the next pair; pods may come in."""
    after = replace(trial, turn=Turn(2 * (trial.turn.pair + 1)), first_half=NO_HALF, open=NO_HALF)
    taking = _participants(after, scene)
    return replace(
        after,
        pods=taking or after.pods,
        ledgers={},
        hold="" if taking else "no pod of the old configuration serves",
    )


def _in_turns(trial: Trial) -> TurnEvidence:
    assert isinstance(trial.evidence, TurnEvidence), "a trial in turns has evidence by pairs"
    return trial.evidence


def _judged(trial: Trial, scene: Scene) -> Trial:
    """Judge complete pairs, and the open one for alarms."""
    judgement = judge_turns(observed(trial), scene.guard, trial.elapsed_s(scene.now_s))
    end = ruling(judgement.verdict, judgement.reason, judgement.message)
    return replace(trial, judgement=judgement, ruling=end)
