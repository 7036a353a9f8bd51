"""What the stable pods of a resource run: the configuration in force, or a block of a trial."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from specdecode_api import names
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_operator import owned
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import Resource
from specdecode_operator.settings import Settings, image_of
from specdecode_operator.trial import Record, Step
from specdecode_operator.trial.record.configuration import InForce
from specdecode_operator.trial.record.state import Trial
from specdecode_operator.trial.strategies.restarts import Block, block_of
from specdecode_operator.updates import downloads, draft_exchange
from specdecode_operator.updates.draft_exchange import DraftExchange
from specdecode_operator.updates.update_strategy import UpdateStrategy, choose_update_strategy


@dataclass(frozen=True, slots=True)
class StablePods:
    """What the stable pods are to run: the configuration in force, or that of a trial's block."""

    resource: Resource
    built: owned.Built
    pins: Mapping[str, str]
    strategy: UpdateStrategy
    is_block: bool = False
    """Whether they run a block of a trial."""
    exchange: DraftExchange | None = None
    """How they come to run another draft; None where no draft is exchanged."""


def engine_image(
    observed: Observed,
    wanted: Resource,
    settings: Settings,
    may_roll: Callable[[], bool],
    record: Record,
) -> str:
    """Engine image where the spec names none; that of its begin in a trial that restarts pods."""
    has_trials = wanted.spec.engine.runtime == "Specdecode"
    if has_trials and record.trial is not None and record.trial.restarts is not None:
        return record.trial.restarts.image
    return default_image(observed, wanted, settings, may_roll)


def stable_pods(observed: Observed, step: Step, stored: Trial | None, image: str) -> StablePods:
    """Return what the stable pods are to run.

    Args:
        stored: the trial as stored before this step.
        image: engine image where the spec names none.
    """
    trial = step.record.trial
    block = block_of(trial, stored, step.now, observed.resource) if trial else None
    if block is not None:
        resource, tuned, stamp = block.resource, block.table, block.stamp
    else:
        resource, stamp = step.now.resource, ""
        tuned = step.now.tuned_table
    strategy = _strategy(observed, step, block)
    pins = downloads.pins(observed, resource)
    built, exchange = step.now.built, None
    if block is None:
        exchange = draft_exchange.decide(observed, resource, built)
    carrier = exchange.carrier if exchange else None
    if pins or stamp or strategy.is_in_place or carrier:
        built = owned.build(
            resource,
            image,
            pins,
            tuned=tuned,
            is_in_place=strategy.is_in_place,
            block=stamp,
            carrier=carrier,
        )
    return StablePods(resource, built, pins, strategy, block is not None, exchange)


def _strategy(observed: Observed, step: Step, block: Block | None) -> UpdateStrategy:
    """How pods are replaced; a trial that restarts them decides once."""
    kind = step.now.resource.spec.update_strategy.type
    restarts = step.record.trial.restarts if step.record.trial else None
    if restarts is not None and restarts.is_in_place and kind == "Auto":
        return UpdateStrategy(is_in_place=True)
    if block is not None:
        return UpdateStrategy(kind == "InPlace")
    return choose_update_strategy(observed, step.now.resource, step.now.built.config_hash)


def naming_revision(manifests: Iterable[Manifest], step: Step, in_force: str) -> list[Manifest]:
    """Owned objects with the name of the revision in force on the Deployment, the last of them.

    It shows a loss of everything else. Where the spec alone decides it is not there: whatever the
    Deployment runs then is an earlier spec.
    """
    *others, deployment = manifests
    if in_force and (step.record.accepted is not None or step.decided.tuned is not None):
        deployment = owned.annotated(deployment, {names.ANNOTATION_REVISION: in_force})
    return [*others, deployment]


def boot_files(observed: Observed, now: InForce, image: str) -> list[Manifest]:
    """Boot file of the configuration in force, which stays while the pods run a candidate."""
    pins = downloads.pins(observed, now.resource)
    built = owned.build(now.resource, image, pins, tuned=now.tuned_table)
    return [each for each in built.children if each["kind"] == CONFIG_MAP.kind]


def default_image(
    observed: Observed, wanted: Resource, settings: Settings, may_roll: Callable[[], bool]
) -> str:
    """Engine image for a spec that names none.

    A new default image of the operator does not replace the pods of a resource whose upgrade policy
    is Pinned: it keeps the image of its Deployment. So does one whose policy is Roll while too many
    others are replaced. A guarded resource tries the new image.
    """
    default = image_of(settings, wanted.spec.engine.runtime)
    running = running_image(observed, wanted.spec.engine.runtime)
    is_guarded = wanted.spec.rollout.edit_policy == "Guarded"
    if running in (None, default) or is_guarded:
        return default
    policy = wanted.spec.engine.upgrade_policy or settings.upgrade_policy
    if policy == "Roll" and wanted.spec.engine.image is None and may_roll():
        return default
    return str(running)


def runs_default_image(observed: Observed, settings: Settings) -> bool:
    """Whether a resource's Deployment has the default image of its runtime."""
    runtimes: tuple[RuntimeName, ...] = get_args(RuntimeName)
    return any(running_image(observed, each) == image_of(settings, each) for each in runtimes)


def running_image(observed: Observed, runtime: RuntimeName) -> str | None:
    """Engine image of a resource's Deployment; None without one, and of another runtime."""
    live = observed.owned(DEPLOYMENT)
    if live is None:
        return None
    template = live["spec"]["template"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    if labels.get(names.LABEL_RUNTIME, "Specdecode") != runtime:
        return None
    containers = template["spec"]["containers"]
    images = (each["image"] for each in containers if each["name"] == names.ENGINE_CONTAINER)
    return next(images, None)
