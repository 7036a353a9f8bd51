"""One step of the trials of a resource: (observed, record, snapshot, now) → the next record.

Pure and level-triggered: the same input gives the same result, and a new process continues where
the record stands.
"""

from dataclasses import dataclass, replace

from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.parts import Failures, Part, described
from specdecode_operator.objects.resource import Resource, parse_stored
from specdecode_operator.trial.record.candidate import DryRun
from specdecode_operator.trial.record.configuration import InForce
from specdecode_operator.trial.record.objects import commands
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.state import Kind, Phase, Target, Trial
from specdecode_operator.trial.steps.begin import Begun, begin
from specdecode_operator.trial.steps.finish import cut_short
from specdecode_operator.trial.steps.learning import Advice, advise
from specdecode_operator.trial.steps.proceed import proceed
from specdecode_operator.trial.steps.situation import Pending, Situation, wanted
from specdecode_operator.trial.strategies.context import EngineSnapshot


@dataclass(frozen=True, slots=True)
class Step:
    """What counts from now on."""

    record: Record
    now: InForce
    """What is stored as in force, and serves."""
    decided: InForce
    """What serves once the record is stored."""
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
    notice: str = ""
    """Why an edit of a guarded spec was put in force without a trial."""
    dry_run: DryRun | None = None
    """What the API server has to accept before the next trial begins."""


def advance(
    observed: Observed,
    record: Record,
    snapshot: EngineSnapshot | None,
    now_s: float,
    image: str,
    *,
    has_trials: bool = True,
    failures: Failures | None = None,
) -> Step:
    """Go a step.

    Args:
        now_s: seconds since 1970.
        image: engine image where the spec names none.
        has_trials: whether trials may run; without, a running one ends without a verdict.
        failures: collects exceptions of a trial or of the recommendation, which stop nothing else:
            the trial ends, the recommendation stays.

    Raises:
        ResourceError: when the spec, or the accepted one, cannot be carried out.
    """
    failures = Failures() if failures is None else failures
    resource = parse_stored(observed.resource)
    asked_for = commands(observed.trials, record)
    situation = Situation(observed, resource, snapshot, asked_for, now_s, image, has_trials)
    # What is stored serves; what this step decides serves once it is stored.
    serving = situation.in_force(record)
    found = wanted(record, situation, serving)
    if found.record.trial is not None:
        found = _proceeded(found, found.record.trial, situation, failures)
    advice = None
    if situation.rollout.mode != "Manual" and (found.record.trial is None or snapshot is None):
        advice = failures.attempt(
            Part.RECOMMENDATION,
            "the recommendation",
            lambda: advise(found.now, situation.context()),
            None,
        )
    begun = Begun(found.record)
    if found.record.trial is None:
        begun = _begun(found, advice, situation, failures)
    decided = situation.in_force(begun.record, found.now)
    pending = None if begun.is_in_force else found.target
    step = Step(begun.record, serving, decided, pending)
    try:
        step = _with_pods(step, situation)
    except Exception as error:
        step = ended(step, error, now_s, failures)
    return replace(
        step,
        advice=advice,
        held=begun.held,
        refusal=begun.refusal,
        notice=begun.notice,
        dry_run=begun.dry_run,
    )


def ended(step: Step, error: Exception, now_s: float, failures: Failures) -> Step:
    """The step with an end of its trial, for whose pods something cannot be computed.

    Args:
        error: raised where there is a trial; without one it is raised again.
    """
    trial = step.record.trial
    if trial is None:
        raise error
    failures.add(Part.TRIAL, f"trial {trial.name}", error)
    record = cut_short(step.record, trial, error, now_s)
    return replace(step, record=record, canary=None, baseline=None)


def _proceeded(found: Pending, trial: Trial, situation: Situation, failures: Failures) -> Pending:
    """Go a step of the trial that runs; one that cannot go ends."""
    try:
        record = proceed(found.record, trial, found.target, found.now, situation)
    except Exception as error:
        failures.add(Part.TRIAL, f"trial {trial.name}", error)
        record = cut_short(found.record, trial, error, situation.now_s)
    if record.trial is None or record.trial.phase.is_ending:
        # What the end of a trial put in force may be what the spec wants.
        return wanted(record, situation, found.now)
    return replace(found, record=record)


def _begun(
    found: Pending, advice: Advice | None, situation: Situation, failures: Failures
) -> Begun:
    """Begin the next trial; what cannot begin waits."""
    try:
        return begin(found.record, found.target, advice, found.now, situation, failures)
    except Exception as error:
        failures.add(Part.TRIAL, "the next trial", error)
        return Begun(found.record, refusal=described(error))


def _with_pods(step: Step, situation: Situation) -> Step:
    """The step, with the pods that a trial needs in addition to the stable ones."""
    trial = step.record.trial
    if trial is None or trial.kind is not Kind.CANARY or trial.phase is Phase.ROLLING_BACK:
        return step
    if not trial.is_published:
        return step
    manifest = situation.observed.resource
    replicas = situation.rollout.canary.replicas
    spec = {**(trial.target.spec or {}), "replicas": replicas}
    step = replace(step, canary=parse_stored({**manifest, "spec": spec}))
    if trial.has_fresh_baseline and not trial.phase.is_ending:
        resource = step.now.resource
        spec_of_old = resource.spec.model_copy(update={"replicas": replicas})
        step = replace(step, baseline=replace(resource, spec=spec_of_old))
    return step
