"""What a step of a trial looks at: pods by role, the last look, times and bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode_api import names
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.fleet import Reading
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.judge.guard import Guard
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.trial.strategies.guard import TrialTiming


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """A look at the pods of a resource; `at_s` is in seconds since 1970."""

    at_s: float
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """By the uid of the pod."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a pod was not read, by its name."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why a pod cannot take a table without a restart, by its name."""


@dataclass(frozen=True, slots=True)
class TrialContext:
    """What is seen now. Times are seconds since 1970."""

    observed: Observed
    snapshot: EngineSnapshot | None
    now_s: float
    guard: Guard
    timing: TrialTiming
    spec: Spec
    """The resource's own, which counts for replicas and update strategy."""
    canary_replicas: int = 1
    startup_s: float = 1800.0

    def pods(self, role: str) -> tuple[Manifest, ...]:
        """Active pods of a role, by name."""
        return tuple(
            pod for pod in self.observed.pods if role_of(pod) == role and pods.is_active(pod)
        )

    def ready(self, role: str, config_hash: str) -> tuple[Manifest, ...]:
        """Pods of a role that serve a configuration."""
        return tuple(
            pod
            for pod in self.pods(role)
            if pods.is_ready(pod) and pods.config_hash_of(pod) == config_hash
        )

    def readings(self, found: tuple[Manifest, ...]) -> tuple[Reading, ...]:
        """What was read of some pods at the last look."""
        by_uid: Mapping[str, Reading] = self.snapshot.readings if self.snapshot else {}
        return tuple(by_uid[uid_of(pod)] for pod in found if uid_of(pod) in by_uid)

    def runs(self, pod: Manifest, arm: ArmKey) -> bool:
        """Whether a pod reported at the last look that it runs this table."""
        reading = self.snapshot.readings.get(uid_of(pod)) if self.snapshot else None
        return reading is not None and reading.key.table_hash == arm.table_hash


def role_of(pod: Manifest) -> str:
    """Role that a pod was made for."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get(names.LABEL_ROLE, names.ROLE_STABLE))


def uid_of(pod: Manifest) -> str:
    """Uid of a pod."""
    return str(pod["metadata"]["uid"])


def name_of(pod: Manifest) -> str:
    """Name of a pod."""
    return str(pod["metadata"]["name"])
