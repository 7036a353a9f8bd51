"""Begins the next trial of a resource: of a user, of an edit, or of a recommended table."""

from dataclasses import dataclass, replace

from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.parts import Failures, Part, described
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.trial.record.candidate import (
    DryRun,
    beyond_candidates,
    dry_run,
    spec_in_force,
)
from specdecode_operator.trial.record.configuration import InForce, table_target
from specdecode_operator.trial.record.objects import waiting_trials
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.state import Origin, Target
from specdecode_operator.trial.steps.exploration import why_over_budget, why_too_many
from specdecode_operator.trial.steps.finish import promoted
from specdecode_operator.trial.steps.learning import Advice, proposal_of
from specdecode_operator.trial.steps.proceed import TRIALS_OFF
from specdecode_operator.trial.steps.situation import Situation
from specdecode_operator.trial.steps.start import (
    NEEDS_RESTART,
    StrategyRefused,
    arrange,
    begin_edit,
    begin_proposal,
    named,
    why_held,
    worst_case,
)
from specdecode_operator.trial.steps.users import UserTrial, begin_user, refuse, refused, user_trial

NOT_TRIED = (
    "the edit of {fields} is in force without a trial: a trial can change speculation, pageSize "
    "and engine only"
)
RUNTIME_NOT_TRIED = (
    "the edit of engine.runtime is in force without a trial: runtimes cannot be compared"
)


@dataclass(frozen=True, slots=True)
class Begun:
    """The record after the begin of a trial, or why none began."""

    record: Record
    held: str = ""
    """Why a recommended table is not tried."""
    refusal: str = ""
    """Why what the spec wants cannot be tried."""
    notice: str = ""
    """Why an edit of a guarded spec was put in force without a trial."""
    is_in_force: bool = False
    """Whether the whole edit was put in force."""
    dry_run: DryRun | None = None
    """What the API server has to accept before the trial of a user begins."""


def begin(
    record: Record,
    target: Target | None,
    advice: Advice | None,
    now: InForce,
    situation: Situation,
    failures: Failures,
) -> Begun:
    """Begin a trial of a user, else of an edit, else of a recommended table.

    Args:
        failures: collects exceptions about a trial of a user, which ends it.
    """
    if begun := _begun_by_user(record, now, situation, failures):
        found = replace(begun, held="a trial of a user goes first")
    elif target is not None:
        found = _begin_edit(record, target, now, situation)
    else:
        found = Begun(*_begin_proposal(record, advice, now, situation))
    return replace(found, record=named(found.record, situation.observed.resource))


def _begun_by_user(
    record: Record, now: InForce, situation: Situation, failures: Failures
) -> Begun | None:
    """Begin, promote or refuse the next trial of a user, if one waits; after a dry run."""
    waiting = waiting_trials(situation.observed.trials, record)
    if not waiting or not situation.has_trials or situation.resource.spec.replicas == 0:
        return None
    name = str(waiting[0]["metadata"]["name"])
    try:
        return _tried(record, waiting[0], now, situation)
    except Exception as error:
        failures.add(Part.TRIAL, f"trial {name}", error)
        refusal = refused(UserTrial(name), described(error))
        return Begun(refuse(record, refusal, situation.now_s))


def _tried(record: Record, trial: Manifest, now: InForce, situation: Situation) -> Begun:
    """Begin, promote or refuse a trial of a user, after a dry run of its candidate."""
    observed, image = situation.observed, situation.image
    found = user_trial(trial, observed.resource, now, record, image)
    if found.target is not None:
        spec = spec_in_force(observed.resource["spec"], record.accepted)
        wanted = dry_run({**observed.resource, "spec": spec}, trial)
        answer = observed.dry_runs.get(wanted.key)
        if answer is None:
            return Begun(record, dry_run=wanted)
        found = refused(found, answer) if answer else found
    rollout, now_s = situation.rollout, situation.now_s
    return Begun(begin_user(record, now, found, rollout, observed, image, now_s))


def _begin_proposal(
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
    spec, now_s = situation.resource.spec, situation.now_s
    wanted = worst_case(how, spec, spec.rollout, Origin.RECOMMENDATION, now_s)
    held = why_too_many(record, spec, now_s) or why_over_budget(record, spec, wanted)
    if held or not situation.has_trials:
        return record, held if situation.has_trials else TRIALS_OFF
    return begin_proposal(record, now, target, how, wanted), ""


def _begin_edit(record: Record, target: Target, now: InForce, situation: Situation) -> Begun:
    """Try an edit of a guarded spec, or put it in force without; else why it cannot be tried."""
    held = "an edit of the spec goes first"
    by_hand = situation.commands.promote == target.id
    # Pods of equal hashes mount the same boot file, so there is nothing to compare.
    is_same = target.table is None and target.arm.config_hash == now.plain.config_hash
    is_moved = _changes_runtime(target, now)
    if by_hand or is_same or is_moved or _serves_nobody(now, situation):
        done = promoted(record, target, Origin.EDIT, now.plain.arm, "")
        notice = RUNTIME_NOT_TRIED if is_moved else ""
        return Begun(done, held, notice=notice, is_in_force=True)
    if others := beyond_candidates(now.resource, situation.observed.resource, target):
        notice = NOT_TRIED.format(fields=", ".join(others))
        if partly := _untried(record, target, others, situation):
            return Begun(partly, held, notice=notice)
        done = promoted(record, target, Origin.EDIT, now.plain.arm, "")
        return Begun(done, held, notice=notice, is_in_force=True)
    ended = record.ending_of(target.id)
    if record.is_rejected(target.id) and (ended is None or ended.reason != NEEDS_RESTART):
        return Begun(record, held)
    if not situation.has_trials:
        return Begun(record, held, TRIALS_OFF)
    how = arrange(target, situation.rollout, now, situation.observed, situation.image)
    if isinstance(how, StrategyRefused):
        return Begun(record, held, how.message)
    return Begun(begin_edit(record, now, target, how, situation.rollout, situation.now_s), held)


def _changes_runtime(target: Target, now: InForce) -> bool:
    """Whether an edit changes the runtime, which no trial can compare."""
    engine = (target.spec or {}).get("engine") or {}
    wanted = engine.get("runtime", "Specdecode") if target.spec is not None else None
    return wanted is not None and wanted != now.resource.spec.engine.runtime


def _untried(
    record: Record, target: Target, others: list[str], situation: Situation
) -> Record | None:
    """Put the parts of an edit in force that no candidate may change; the rest is tried next.

    None where everything has to count at once: with another model, to which drafts and tables
    belong, or where those parts do not go with the rest of what is in force, such as several
    ranks with a draft that needs one.
    """
    if "model" in others:
        return None
    wanted = target.spec or {}
    accepted = {
        name: value for name, value in (record.accepted or {}).items() if name not in others
    }
    accepted |= {name: wanted[name] for name in others if name in wanted}
    done = replace(record, accepted=accepted)
    try:
        situation.in_force(done)
    except ResourceError:
        return None
    return done


def _serves_nobody(now: InForce, situation: Situation) -> bool:
    """Whether there is nothing to guard: no replicas are wanted, or the old ones do not start."""
    if situation.resource.spec.replicas == 0:
        return True
    old = now.built.config_hash
    active = filter(pods.is_active, situation.observed.pods)
    mine = [pod for pod in active if pods.config_hash_of(pod) == old]
    trouble = pods.trouble(mine, old, {}, situation.observed.at)
    return not any(map(pods.is_ready, mine)) and trouble is not None and trouble.is_error
