"""What the routers of a resource count, read from their metrics."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specdecode_api import names
from specdecode_api.metrics import router
from specdecode_operator.objects.kinds import Manifest


@dataclass(frozen=True, slots=True)
class RouterCounts:
    """What a router has counted since its start, or several since a moment."""

    resumed: int = 0
    """Answers that another engine continued."""
    unresumable: int = 0
    """Streams that no engine could continue."""
    held: int = 0
    """Requests that had to wait for an engine."""


NO_COUNTS = RouterCounts()


def read_counts(pods: Iterable[Manifest]) -> dict[str, RouterCounts]:
    """Read the counts of each router by its container; one that does not answer is left out."""
    return {_container(pod): counts_in(text) for pod, text in _read(pods)}


def requests_on(pods: Iterable[Manifest], engine: str) -> int:
    """Return how many requests routers have on an engine, which is named by its pod."""
    return sum(requests_in(text, engine) for _, text in _read(pods))


def increase(before: Mapping[str, RouterCounts], after: Mapping[str, RouterCounts]) -> RouterCounts:
    """Return what was counted in between; a killed router takes its last counts with it."""
    pairs = [(before.get(name, NO_COUNTS), counts) for name, counts in after.items()]
    return RouterCounts(
        sum(new.resumed - old.resumed for old, new in pairs),
        sum(new.unresumable - old.unresumable for old, new in pairs),
        sum(new.held - old.held for old, new in pairs),
    )


def counts_in(text: str) -> RouterCounts:
    """Return what a router's metrics contain."""
    return RouterCounts(
        _sum(text, f"{router.ROUTER_RESUMED.family}_total"),
        _sum(text, f"{router.ROUTER_UNRESUMABLE.family}_total"),
        _sum(text, f"{router.ROUTER_HELD.family}_total"),
    )


def requests_in(text: str, engine: str) -> int:
    """Return how many requests a router has on an engine, from its metrics."""
    return _sum(text, router.ROUTER_RUNNING_REQUESTS.family, **{router.ENGINE_LABEL: engine})


def _sum(text: str, name: str, **labels: str) -> int:
    samples = (sample for each in text_string_to_metric_families(text) for sample in each.samples)
    found = (each for each in samples if each.name == name)
    return int(sum(each.value for each in found if labels.items() <= each.labels.items()))


def _read(pods: Iterable[Manifest]) -> Iterator[tuple[Manifest, str]]:
    for pod in pods:
        host = f"http://{pod['status'].get('podIP')}:{names.MANAGEMENT_PORT}"
        try:
            response = httpx.get(host + names.PATH_METRICS, timeout=5, trust_env=False)
            yield pod, response.raise_for_status().text
        except (httpx.HTTPError, httpx.InvalidURL):
            continue


def _container(pod: Manifest) -> str:
    ids = [each.get("containerID") for each in pod["status"].get("containerStatuses") or ()]
    return str(ids[0] if ids else pod["metadata"]["uid"])
