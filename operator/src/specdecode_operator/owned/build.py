"""Builds all objects that a custom resource owns, the workload last."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_api.metrics import table_hash
from specdecode_api.table import TableEntry, candidates
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.resource import Owner, Resource, ResourceError, sentences
from specdecode_operator.owned.boot_file import boot_file
from specdecode_operator.owned.config_map import config_map
from specdecode_operator.owned.deployment import deployment
from specdecode_operator.owned.hashes import config_hash, digest, exchange_hash
from specdecode_operator.owned.models import mounts
from specdecode_operator.owned.pod import pod_template
from specdecode_operator.owned.service import disruption_budget, service, service_account

_NO_PINS: Mapping[str, str] = MappingProxyType({})
_NO_TABLE: Mapping[str, TableEntry] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Carrier:
    """Pods that were made for one draft and run another, which they exchanged while they ran."""

    pods_hash: str
    """Config hash of their template, which names their boot file."""
    runs: str
    """Config hash of what they run."""
    draft_path: str = ""
    """Folder of the draft with which they start, where it is not that of the spec yet."""


@dataclass(frozen=True, slots=True)
class Built:
    """The complete owned objects of a custom resource, and their boot file."""

    config_hash: str
    boot: EngineBoot
    children: tuple[Manifest, ...]
    exchange_hash: str = ""
    """Hash of all that an exchange of the draft leaves as it is."""
    pods_hash: str = ""
    """Config hash of the pod template: another one where running pods exchanged their draft."""

    @property
    def arm(self) -> ArmKey:
        """Config hash and table hash, as the pods report them."""
        return ArmKey(self.config_hash, table_hash(self.boot.speculation.policy, self.entries))

    @property
    def entries(self) -> Mapping[str, TableEntry]:
        """The table by which the pods choose draft steps."""
        return self.boot.speculation.tuned or self.boot.speculation.entries

    @property
    def prepared_steps(self) -> frozenset[int]:
        """Draft steps that the pods prepare at start and a replaced table may use."""
        speculation = self.boot.speculation
        return frozenset((speculation.usual_steps, *candidates(speculation.entries)))


def build(
    resource: Resource,
    engine_image: str,
    pins: Mapping[str, str] = _NO_PINS,
    *,
    tuned: Mapping[str, TableEntry] = _NO_TABLE,
    role: str = names.ROLE_STABLE,
    is_in_place: bool = False,
    block: str = "",
    carrier: Carrier | None = None,
) -> Built:
    """Build all children, or those of one role of a trial.

    Args:
        pins: commits of models that name a branch or a tag.
        tuned: table that is used in place of the spec's.
        role: of the pods; others than stable need only their boot file and their Deployment.
        is_in_place: have the Deployment replace pods in place though the spec leaves that open.
        block: distinguishes pods that a trial restarts; empty outside of such a trial.
        carrier: pods of another draft that run this configuration without a restart.

    Raises:
        ResourceError: when the spec is well-formed but cannot be carried out.
    """
    name, spec = resource.name, resource.spec
    try:
        places = mounts(spec)
        has_boot_file = spec.engine.runtime == "Specdecode"
        boot = boot_file(name, resource.uid, spec, places, tuned if has_boot_file else _NO_TABLE)
        template = pod_template(name, spec, spec.engine.image or engine_image, places)
    except ValidationError as error:
        raise ResourceError(*sentences(error, EngineBoot)) from None
    # Without defaults: a release that adds a field to the boot file replaces no pod.
    # The command line of another runtime is in the template.
    boot_values = boot.model_dump(mode="json", exclude_defaults=True) if has_boot_file else {}
    fingerprint = config_hash(template, boot_values)
    boot = boot.model_copy(update={"config_hash": fingerprint})
    pods_hash = carrier.pods_hash if carrier else fingerprint
    lasting = exchange_hash(template, boot_values)
    files = [config_map(name, pods_hash, _with_draft_of(carrier, boot), pins)]
    in_place = is_in_place or spec.update_strategy.type == "InPlace"
    workload = deployment(
        name,
        spec,
        template,
        pods_hash,
        is_in_place=in_place,
        role=role,
        block=block,
        annotations=_annotations(spec, lasting, carrier) if role == names.ROLE_STABLE else {},
    )
    *own, last = (finished(child, resource) for child in (*(files * has_boot_file), workload))
    if role == names.ROLE_STABLE:
        account, *others = shared_objects(resource, spec.replicas)
        own = [account, *own, *others]
    own.append(last)
    return Built(fingerprint, boot, tuple(own), lasting, pods_hash)


def shared_objects(owner: Owner, replicas: int) -> list[Manifest]:
    """The owned objects that do not depend on the configuration of engines."""
    name = owner.name
    budget = [disruption_budget(name)] if replicas > 1 else []
    return [finished(each, owner) for each in (service_account(name), service(name), *budget)]


def _with_draft_of(carrier: Carrier | None, boot: EngineBoot) -> EngineBoot:
    """The boot file of pods that still have to exchange their draft names the old one."""
    if carrier is None or not carrier.draft_path:
        return boot
    speculation = boot.speculation.model_copy(update={"draft_path": carrier.draft_path})
    return boot.model_copy(update={"speculation": speculation, "config_hash": carrier.runs})


def _annotations(spec: Spec, lasting: str, carrier: Carrier | None) -> dict[str, str]:
    """Annotations of a Deployment whose pods may exchange their draft."""
    draft = spec.speculation.draft
    if draft is None or spec.engine.runtime != "Specdecode":
        return {}
    found = {names.ANNOTATION_EXCHANGE_HASH: lasting, names.ANNOTATION_DRAFT: draft.uri}
    if carrier is not None and carrier.runs != carrier.pods_hash:
        found[names.ANNOTATION_CONFIG_HASH] = carrier.runs
    return found


def finished(child: Manifest, owner: Owner) -> Manifest:
    """Add namespace, owner reference and desired hash to an owned object."""
    metadata = {**child["metadata"], "namespace": owner.namespace}
    if owner.uid:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return _stamped({**child, "metadata": metadata})


def annotated(child: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """Add annotations to an owned object that was finished."""
    metadata = child["metadata"]
    added = {**metadata["annotations"], **annotations}
    return restamped({**child, "metadata": {**metadata, "annotations": added}})


def restamped(child: Manifest) -> Manifest:
    """Replace the desired hash of an owned object that has changed since it was finished."""
    metadata = child["metadata"]
    stamped = names.ANNOTATION_DESIRED_HASH
    kept = {key: value for key, value in metadata["annotations"].items() if key != stamped}
    return _stamped({**child, "metadata": {**metadata, "annotations": kept}})


def _stamped(child: Manifest) -> Manifest:
    metadata = child["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        names.ANNOTATION_DESIRED_HASH: digest(child),
    }
    return {**child, "metadata": {**metadata, "annotations": annotations}}


def owner_reference(owner: Owner) -> Manifest:
    """Owner reference, by which the garbage collector removes an object after its resource.

    Without `blockOwnerDeletion`, which would need permissions on finalizers.
    """
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }
