"""One step of the trials of a resource: (observed, record, snapshot, now) → the next record.

Pure and level-triggered: the same input gives the same result, and a new process continues where
the record stands.
"""

from dataclasses import dataclass, replace

from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import RolloutSpec
from specdecode_operator import children, pods
from specdecode_operator.children.hashes import digest
from specdecode_operator.observed import Observed
from specdecode_operator.resource import Resource, parse_stored
from specdecode_operator.trial import canary, crossover, restarts
from specdecode_operator.trial.commands import Commands, answers, read_commands
from specdecode_operator.trial.configuration import (
    Difference,
    InForce,
    accepted_part,
    difference,
    in_force,
    table_target,
)
from specdecode_operator.trial.context import TrialContext
from specdecode_operator.trial.exploration import why_over_budget
from specdecode_operator.trial.finish import close, promoted, rule
from specdecode_operator.trial.guard import guard_of, guarded_as, timing_of
from specdecode_operator.trial.learning import Advice, advise, proposal_of
from specdecode_operator.trial.objects import (
    commands,
    is_deleted,
    published,
    reported,
    waiting_trials,
)
from specdecode_operator.trial.record import Record
from specdecode_operator.trial.revisions import pinned
from specdecode_operator.trial.snapshot import EngineSnapshot
from specdecode_operator.trial.start import (
    NEEDS_RESTART,
    StrategyRefused,
    arrange,
    begin_edit,
    begin_proposal,
    edit_target,
    named,
    why_held,
)
from specdecode_operator.trial.state import (
    NO_HALF,
    End,
    Kind,
    Origin,
    Phase,
    Target,
    Trial,
    TrialOutcome,
    Turn,
)
from specdecode_operator.trial.users import begin_user, user_trial

TRIALS_OFF = "trials are switched off for this operator (--no-trials)"


@dataclass(frozen=True, slots=True)
class Step:
    """What counts from now on."""

    record: Record
    now: InForce
    pending: Target | None = None
    """What the spec wants and is not in force."""
    canary: Resource | None = None
    """Configuration of the canary's pods, where there are any, with their number as replicas."""
    baseline: Resource | None = None
    """Configuration of fresh pods of the old one, where there are any."""
    advice: Advice | None = None
    """What the pods' figures speak for; None where they were not asked."""
    held: str = ""
    """Why a recommended table is not tried."""
    refusal: str = ""
    """Why what the spec wants cannot be tried."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Input of a step apart from the record. `now_s` is in seconds since 1970."""

    observed: Observed
    resource: Resource
    snapshot: EngineSnapshot | None
    commands: Commands
    now_s: float
    image: str
    has_trials: bool = True
    """Whether the operator may run trials."""

    @property
    def rollout(self) -> RolloutSpec:
        """The part of the spec about trials."""
        return self.resource.spec.rollout

    def in_force(self, record: Record, known: InForce | None = None) -> InForce:
        """What should serve; `known` where the record has not changed since."""
        if known is not None and known.of == (record.accepted, record.tuned):
            return known
        return in_force(self.observed.resource, self.resource, record, self.image)

    def context(self, trial: Trial | None = None) -> TrialContext:
        """What a trial, or whoever learns, looks at."""
        rollout = guarded_as(self.rollout, trial.guard if trial else {})
        return TrialContext(
            self.observed,
            self.snapshot,
            self.now_s,
            guard_of(rollout, trial),
            timing_of(rollout),
            self.resource.spec,
            rollout.canary.replicas,
            duration_s(self.resource.spec.lifecycle.startup_timeout),
        )


def advance(
    observed: Observed,
    record: Record,
    snapshot: EngineSnapshot | None,
    now_s: float,
    image: str,
    *,
    has_trials: bool = True,
) -> Step:
    """Go a step.

    Args:
        now_s: seconds since 1970.
        image: engine image where the spec names none.
        has_trials: whether trials may run; without, a running one ends without a verdict.

    Raises:
        ResourceError: when the spec, or the accepted one, cannot be carried out.
    """
    resource = parse_stored(observed.resource)
    annotations = observed.resource["metadata"].get("annotations")
    wanted = commands(observed.trials, record, read_commands(annotations))
    situation = Situation(observed, resource, snapshot, wanted, now_s, image, has_trials)
    # What is stored serves; what this step decides serves once it is stored.
    serving = situation.in_force(record)
    record, target, now = _wanted(record, situation)
    record = _hear(record, situation.commands, target)
    if record.trial is not None:
        record = _go_on(record, record.trial, target, now, situation)
        if record.trial is None or record.trial.phase.is_ending:
            # What the end of a trial put in force may be what the spec wants.
            record, target, now = _wanted(record, situation)
    advice = None
    if situation.rollout.mode != "Manual" and (record.trial is None or snapshot is None):
        advice = advise(now, situation.context())
    held = refusal = ""
    if record.trial is None:
        if begun := _begun_by_user(record, now, situation):
            record, held = begun, "a trial of a user goes first"
        elif target is not None:
            record, refusal = _begin_edit(record, target, now, situation)
            held = "an edit of the spec goes first"
        else:
            record, held = _begin(record, advice, now, situation)
        record = named(record, observed.resource)
    step = _with_pods(record, target, serving, situation)
    return replace(step, advice=advice, held=held, refusal=refusal)


def _wanted(record: Record, situation: Situation) -> tuple[Record, Target | None, InForce]:
    """What the spec wants and is not in force; the record brought in line with the spec."""
    resource = situation.resource
    if record.overridden:
        if record.overridden == digest(accepted_part(situation.observed.resource["spec"])):
            now = situation.in_force(record)
            return (record if now.tuned else replace(record, tuned=None)), None, now
        record = replace(record, overridden="")  # the spec was edited
    if situation.rollout.edit_policy != "Guarded":
        record = replace(record, accepted=None)
    elif record.accepted is None:
        record = replace(record, accepted=_part(situation))
    now = situation.in_force(record)
    if now.tuned is None and record.tuned is not None:
        record = replace(record, tuned=None)
    if record.accepted is None:
        return record, None, now
    built = children.build(resource, situation.image)
    found = difference(now, resource, built, situation.image)
    if found is Difference.NONE and record.trial is None and built.arm == now.plain.arm:
        # Back at the accepted spec, which needs no trial; a table tried for an edit goes with it.
        is_edits = record.tuned is not None and record.tuned.origin is Origin.EDIT
        tuned = None if is_edits else record.tuned
        record = replace(record, accepted=_part(situation), tuned=tuned)
        return record, None, situation.in_force(record, now)
    spec = situation.observed.resource["spec"]
    return record, edit_target(record, now, spec, built, found, situation.image), now


def _part(situation: Situation) -> dict[str, object]:
    return pinned(accepted_part(situation.observed.resource["spec"]), situation.image)


def _hear(record: Record, wanted: Commands, target: Target | None) -> Record:
    running = record.trial.target.id if record.trial else ""
    pending = target.id if target else ""
    return replace(record, requests=answers(wanted, record.requests, running, pending))


def _go_on(
    record: Record, trial: Trial, target: Target | None, now: InForce, situation: Situation
) -> Record:
    """Measure, rule or settle."""
    trial = published(trial, situation.observed.trials)
    context = situation.context(trial)
    if trial.phase.is_ending:
        is_settled = _is_settled(trial, context)
        return close(record, trial, context.guard, situation.now_s) if is_settled else record
    outcome = _overruled(trial, target, now, situation)
    if outcome is None and trial.name and not trial.is_published:
        hold = f"waits for the creation of SpecDecodeTrial {trial.name}"
        return replace(record, trial=replace(trial, hold=hold))
    if outcome is None:
        trial = _rest(trial, situation)
        trial = _stepped(trial, context)
        outcome = reported(trial, trial.outcome)
    if outcome is None:
        return replace(record, trial=trial)
    record = rule(record, trial, outcome, now.plain.arm, situation.now_s)
    assert record.trial is not None, "an outcome leaves the trial to settle"
    if outcome.end is not End.PROMOTED and trial.kind is Kind.CANARY:
        # Its pods go with the record; nothing else has to be put back.
        return close(record, record.trial, context.guard, situation.now_s)
    return record


def _stepped(trial: Trial, context: TrialContext) -> Trial:
    if trial.restarts is not None:
        return restarts.step(trial, context)
    if trial.kind is Kind.CANARY:
        return canary.step(trial, context)
    return crossover.step(trial, context)


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
    if trial.old != now.built.arm:
        message = "the configuration that it was compared with is no longer the one in force"
        return TrialOutcome(End.SUPERSEDED, "BaseChanged", message)
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
    wants_pause = situation.commands.wants_pause(trial.target.id)
    if wants_pause and not trial.is_paused:
        return replace(
            trial,
            is_paused=True,
            pause_began_s=situation.now_s,
            turn=Turn(2 * trial.turn.pair),
            first_half=NO_HALF,
            open=NO_HALF,
            hold="paused by a user",
        )
    if trial.is_paused and not wants_pause:
        paused_s = trial.paused_s + situation.now_s - trial.pause_began_s
        return replace(
            trial,
            is_paused=False,
            paused_s=paused_s,
            hold="",
            ledgers={},
            window_s=situation.now_s,
        )
    return trial


def _is_settled(trial: Trial, context: TrialContext) -> bool:
    if trial.restarts is not None:
        return restarts.is_settled(trial, context)
    if trial.kind is Kind.CANARY:
        return canary.is_settled(trial, context)
    return crossover.is_settled(trial, context)


def _begun_by_user(record: Record, now: InForce, situation: Situation) -> Record | None:
    """Begin, promote or refuse the next trial of a user, if one waits."""
    waiting = waiting_trials(situation.observed.trials, record)
    if not waiting or not situation.has_trials or situation.resource.spec.replicas == 0:
        return None
    observed, image = situation.observed, situation.image
    found = user_trial(waiting[0], observed.resource, now, record, image)
    return begin_user(record, now, found, situation.rollout, observed, image, situation.now_s)


def _begin(
    record: Record, advice: Advice | None, now: InForce, situation: Situation
) -> tuple[Record, str]:
    """Try a recommended table if there is one; else why it is not tried."""
    proposal = proposal_of(advice, now)
    if proposal is None or proposal.arm == now.built.arm:
        return record, ""
    held = why_held(record, now, proposal.arm, situation.now_s)
    if held or situation.rollout.mode != "Auto":
        return record, held
    target = table_target(now, proposal.table, proposal.arm)
    how = arrange(target, situation.rollout, now, situation.observed, situation.image)
    if isinstance(how, StrategyRefused):
        return record, how.message
    if held := _why_not_now(record, how.kind, situation):
        return record, held
    return begin_proposal(record, now, target, how, situation.now_s), ""


def _why_not_now(record: Record, kind: Kind, situation: Situation) -> str:
    if not situation.has_trials:
        return TRIALS_OFF
    return why_over_budget(record, situation.resource.spec, kind, situation.now_s)


def _begin_edit(
    record: Record, target: Target, now: InForce, situation: Situation
) -> tuple[Record, str]:
    """Try an edit of a guarded spec, or put it in force without; else why it cannot be tried."""
    by_hand = situation.commands.promote == target.id
    # Pods of equal hashes mount the same boot file, so there is nothing to compare.
    is_same = target.table is None and target.arm.config_hash == now.plain.config_hash
    if by_hand or is_same or _serves_nobody(now, situation):
        return promoted(record, target, Origin.EDIT, now.plain.arm), ""
    ended = record.ending_of(target.id)
    if record.is_rejected(target.id) and (ended is None or ended.reason != NEEDS_RESTART):
        return record, ""
    if not situation.has_trials:
        return record, TRIALS_OFF
    how = arrange(target, situation.rollout, now, situation.observed, situation.image)
    if isinstance(how, StrategyRefused):
        return record, how.message
    return begin_edit(record, now, target, how, situation.rollout, situation.now_s), ""


def _serves_nobody(now: InForce, situation: Situation) -> bool:
    """Whether there is nothing to guard: no replicas are wanted, or the old ones do not start."""
    if situation.resource.spec.replicas == 0:
        return True
    old = now.built.config_hash
    mine = [pod for pod in situation.observed.pods if pods.config_hash_of(pod) == old]
    trouble = pods.trouble(mine, old, {}, situation.observed.at)
    return not any(map(pods.is_ready, mine)) and trouble is not None and trouble.is_error


def _with_pods(record: Record, target: Target | None, now: InForce, situation: Situation) -> Step:
    """The step, with the pods that a trial needs in addition to the stable ones."""
    trial = record.trial
    step = Step(record, now, target)
    if trial is None or trial.kind is not Kind.CANARY or trial.phase is Phase.ROLLING_BACK:
        return step
    manifest = situation.observed.resource
    replicas = situation.rollout.canary.replicas
    spec = {**(trial.target.spec or {}), "replicas": replicas}
    step = replace(step, canary=parse_stored({**manifest, "spec": spec}))
    if trial.has_fresh_baseline and not trial.phase.is_ending:
        resource = now.resource
        spec_of_old = resource.spec.model_copy(update={"replicas": replicas})
        step = replace(step, baseline=replace(resource, spec=spec_of_old))
    return step
