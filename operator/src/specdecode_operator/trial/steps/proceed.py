"""A trial that runs goes a step: it is measured, ruled or settled."""

from dataclasses import replace

from specdecode_operator.trial.record.configuration import InForce
from specdecode_operator.trial.record.objects import is_deleted, published, reported
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.state import (
    NO_HALF,
    End,
    Kind,
    Origin,
    Period,
    Phase,
    Target,
    Trial,
    TrialOutcome,
)
from specdecode_operator.trial.steps.finish import close, promoted, rule
from specdecode_operator.trial.steps.situation import Situation
from specdecode_operator.trial.strategies import canary, crossover, restarts
from specdecode_operator.trial.strategies.context import TrialContext
from specdecode_operator.trial.strategies.guard import contradiction
from specdecode_operator.trial.strategies.overdue import advanced

TRIALS_OFF = "trials are switched off for this operator (--no-trials)"


def proceed(
    record: Record, trial: Trial, target: Target | None, now: InForce, situation: Situation
) -> Record:
    """Measure, rule or settle."""
    trial = published(trial, situation.observed.trials)
    context = situation.context(trial)
    if trial.phase.is_ending:
        if trial.phase is Phase.PROMOTING and record.promoted_by != trial.name:
            # The verdict was stored with the trial, what it puts in force was not.
            record = promoted(record, trial.target, trial.origin, now.plain.arm, trial.name)
        elif _is_replaced(trial, now):
            return close(record, trial, context.guard, situation.now_s)
        trial = crossover.settled(trial, context)
        if _is_settled(trial, context):
            return close(record, trial, context.guard, situation.now_s)
        return replace(record, trial=trial)
    outcome = _overruled(trial, target, now, situation)
    if outcome is None and not trial.is_published:
        why = f"waits for the creation of SpecDecodeTrial {trial.name}"
        return replace(record, trial=replace(trial, blocked_by=why))
    if outcome is None:
        rested = _rest(trial, situation)
        trial = advanced(trial, _stepped(rested, context), situation.now_s)
        outcome = reported(trial, trial.outcome)
    if outcome is None:
        return replace(record, trial=trial)
    record = rule(record, trial, outcome, now.plain.arm, situation.now_s)
    assert record.trial is not None, "an outcome leaves the trial to settle"
    if outcome.end is not End.PROMOTED and trial.kind is Kind.CANARY:
        # Its pods go with the record; nothing else has to be put back.
        return close(record, record.trial, context.guard, situation.now_s)
    return record


def _overruled(
    trial: Trial, target: Target | None, now: InForce, situation: Situation
) -> TrialOutcome | None:
    """An end that is not the judge's: a person asked for it, or the ground has changed."""
    asked_for, own = situation.commands, trial.target.id
    if not situation.has_trials:
        return TrialOutcome(End.SUPERSEDED, "TrialsOff", TRIALS_OFF)
    if asked_for.promote == own:
        return TrialOutcome(End.PROMOTED, "PromotedByHand", "a user asked for it")
    if asked_for.abort == own:
        return TrialOutcome(End.ABORTED, "AbortedByHand", "a user asked for it")
    if is_deleted(trial, situation.observed.trials):
        return TrialOutcome(
            End.ABORTED, "TrialDeleted", f"SpecDecodeTrial {trial.name} was deleted"
        )
    if why := contradiction(situation.rollout, trial.guard):
        return TrialOutcome(End.SUPERSEDED, "GuardChanged", why)
    if trial.old != now.built.arm:
        message = "the configuration that it was compared with is no longer the one in force"
        return TrialOutcome(End.SUPERSEDED, "BaseChanged", message)
    if trial.kind is Kind.CANARY and situation.resource.spec.replicas == 0:
        message = "replicas is 0, so no pods run for a trial either"
        return TrialOutcome(End.SUPERSEDED, "NoReplicas", message)
    if trial.origin is Origin.USER:
        return None
    if trial.origin is Origin.EDIT:
        if target is None:
            return TrialOutcome(End.SUPERSEDED, "Reverted", "the spec wants no change any more")
        if target.id != own:
            return TrialOutcome(End.SUPERSEDED, "SpecChanged", f"the spec wants {target.id} now")
        return None
    if target is not None:
        return TrialOutcome(End.SUPERSEDED, "SpecChanged", "an edit of the spec goes first")
    if situation.rollout.mode != "Auto":
        message = f"mode {situation.rollout.mode} starts no trials"
        return TrialOutcome(End.SUPERSEDED, "ModeChanged", message)
    return None


def _rest(trial: Trial, situation: Situation) -> Trial:
    """Begin or end a pause; the turn in which it falls is repeated."""
    wants_pause = situation.commands.pause == trial.target.id
    if wants_pause and not trial.is_paused:
        return replace(
            trial,
            is_paused=True,
            pause_began_s=situation.now_s,
            period=Period(2 * trial.period.pair),
            first_half=NO_HALF,
            open=NO_HALF,
            blocked_by="paused by a user",
        )
    if trial.is_paused and not wants_pause:
        paused_s = trial.paused_s + situation.now_s - trial.pause_began_s
        return replace(
            trial,
            is_paused=False,
            paused_s=paused_s,
            blocked_by="",
            ledgers={},
            window_s=situation.now_s,
        )
    return trial


def _is_replaced(trial: Trial, now: InForce) -> bool:
    """Whether another configuration is in force by now than the one that a trial ends with."""
    arm = trial.target.arm if trial.phase is Phase.PROMOTING else trial.old
    return arm.config_hash != now.built.config_hash


def _is_settled(trial: Trial, context: TrialContext) -> bool:
    if trial.restarts is not None:
        return restarts.is_settled(trial, context)
    if trial.kind is Kind.CANARY:
        return canary.is_settled(trial, context)
    return crossover.is_settled(trial, context)


def _stepped(trial: Trial, context: TrialContext) -> Trial:
    if trial.restarts is not None:
        return restarts.step(trial, context)
    if trial.kind is Kind.CANARY:
        return canary.step(trial, context)
    return crossover.step(trial, context)
