"""Metrics of the operator."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Key
from specdecode_operator.status.conditions import Type
from specdecode_operator.status.exploration_cost import exploration_cost

PREFIX = f"{names.METRIC_PREFIX}operator_"


@dataclass(frozen=True, slots=True)
class OverdueTrial:
    """A running trial, and by how much its phase, pair or window is late; 0: it is on time."""

    key: Key
    name: str
    late_s: float


class _OverdueTrials(Collector):
    """One series for each running trial that is not paused."""

    def __init__(self, overdue: Callable[[], Iterable[OverdueTrial]]) -> None:
        self._overdue = overdue

    def collect(self) -> Iterable[Metric]:
        """List the trials at every scrape."""
        family = GaugeMetricFamily(
            f"{PREFIX}trial_overdue_seconds",
            "Seconds by which the present phase, pair or window of a running trial is late: beyond "
            "twice the longest time that it usually takes. No value while the trial is paused.",
            labels=("resource_namespace", "deployment", "trial"),
        )
        for each in self._overdue():
            family.add_metric((each.key.namespace, each.key.name, each.name), each.late_s)
        yield family


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("reconcile", "Reconciles by result.", "result")
        self.reconcile_seconds = Histogram(
            f"{PREFIX}reconcile_duration_seconds",
            "Duration of a reconcile.",
            registry=self.registry,
        )
        self.applies = self._counter("apply", "Owned objects written, by cause.", "kind", "outcome")
        self.prunes = self._counter("prune", "Owned objects deleted.", "kind")
        self.status_writes = self._counter("status_write", "Status updates written.")
        self.drifts = self._counter(
            "drift_corrected", "Owned objects restored after a change by others.", "kind"
        )
        self.part_failures = self._counter(
            "part_failure", "Exceptions in a part of a reconcile, which stopped no other.", "part"
        )
        self.events = self._counter("watch_event", "Watch events received.", "kind")
        self.missed = self._counter(
            "missed_delete", "Deletions that only a resync detected.", "kind"
        )
        self.api_errors = self._counter("api_error", "Failed API requests, by status code.", "code")
        self.resyncs = self._counter("resync", "Resyncs by result.", "result")
        self.trials = self._counter("trial", "Trials that ended, by verdict.", "kind", "verdict")
        self.resync_time = self._gauge(
            "resync_last_success_timestamp_seconds", "Time of the latest successful resync."
        )
        self.lacking_fields = self._gauge(
            "definition_lacking_fields",
            "Fields and values of this operator that the served CRD would drop or reject.",
        )
        self._queue_depth = self._gauge("queue_depth", "Custom resources waiting for a worker.")
        self._queue_oldest = self._gauge(
            "queue_oldest_seconds", "Longest wait of a custom resource for a worker."
        )
        self._resources = self._gauge("resources", "Custom resources.")
        self._running = self._gauge("trials_running", "Custom resources with a running trial.")
        self._candidate_pod_s = self._gauge(
            "exploration_candidate_pod_seconds",
            "Pod-seconds of the last 24 hours that ran, or may still run, candidates of trials.",
        )
        self._budget_used = self._gauge(
            "exploration_budget_used_ratio",
            "Largest part of rollout.exploration.maxCandidateShare that a resource has used.",
        )
        self._ready = self._gauge("resources_ready", "Custom resources with condition Ready true.")
        self._leading = self._gauge("leader", "1 while this process leads, 0 while it stands by.")
        self._gauge("build_info", "Version of the operator.", "version").labels(version).set(1)

    def watch_queue(self, depth: Callable[[], float], oldest_s: Callable[[], float]) -> None:
        """Export length and longest wait of the queue."""
        self._queue_depth.set_function(depth)
        self._queue_oldest.set_function(oldest_s)

    def watch_leadership(self, is_leader: Callable[[], bool]) -> None:
        """Export whether this process leads."""
        self._leading.set_function(lambda: float(is_leader()))

    def watch_resources(self, resources: Callable[[], Sequence[Manifest]]) -> None:
        """Export the number of resources, of ready ones, of those with a trial, and its cost.

        There is no series per resource, because there may be thousands.
        """
        self._resources.set_function(lambda: len(resources()))
        self._ready.set_function(lambda: sum(map(_is_ready, resources())))
        self._running.set_function(lambda: sum(map(_is_trying, resources())))
        self._candidate_pod_s.set_function(lambda: exploration_cost(resources()).candidate_pod_s)
        self._budget_used.set_function(lambda: exploration_cost(resources()).largest_used)

    def watch_trials(self, overdue: Callable[[], Iterable[OverdueTrial]]) -> None:
        """Export how late each running trial is; there are few of them at any time."""
        self.registry.register(_OverdueTrials(overdue))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}{name}", text, labels, registry=self.registry)


def _is_trying(resource: Manifest) -> bool:
    return bool((resource.get("status") or {}).get("activeTrial"))


def _is_ready(resource: Manifest) -> bool:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(each["type"] == Type.READY and each["status"] == "True" for each in conditions)
