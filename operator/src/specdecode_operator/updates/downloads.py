"""The pods' downloads: progress of each model, and the commit that all pods serve.

The first pod that completes a download resolves a branch or a tag. From then on the commit is in
the ConfigMap next to the boot file, so that replicas, restarts and later configurations download
the same commit; only another `uri` changes it.
"""

import json
import re
from collections.abc import Iterator, Mapping

from specdecode_api import names
from specdecode_api.model_uri import COMMIT_PATTERN, HubLocation, parse_uri
from specdecode_api.report import ModelReport, ModelRole, ModelState
from specdecode_api.v1alpha1 import ModelStatus
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import CONFIG_MAP, Manifest
from specdecode_operator.objects.observed import Observed, is_controlled_by
from specdecode_operator.objects.resource import Resource
from specdecode_operator.owned.fetch import fetched

_ORDER = (
    ModelState.FAILED,
    ModelState.PENDING,
    ModelState.WAITING,
    ModelState.DOWNLOADING,
    ModelState.READY,
)


def pins(observed: Observed, resource: Resource) -> dict[str, str]:
    """Known commits of the URIs that name a branch or a tag."""
    known = dict(_fetched_commits(observed)) | dict(_written_pins(observed))
    uris = fetched(resource.spec).values()
    return {uri: known[uri] for uri in uris if uri in known and not _is_pinned(uri)}


def statuses(
    observed: Observed, resource: Resource, pinned: Mapping[str, str]
) -> list[ModelStatus]:
    """Status of every downloaded model, in the pod with the least progress."""
    return [
        _status(role, uri, _reports(observed, uri), pinned.get(uri))
        for role, uri in fetched(resource.spec).items()
    ]


def _status(
    role: ModelRole, uri: str, reports: list[ModelReport], pinned: str | None
) -> ModelStatus:
    if not reports:
        revision = pinned or _commit_of(uri)
        waiting = "no pod has started the download"
        return ModelStatus(
            role=role, uri=uri, state=ModelState.PENDING, revision=revision, message=waiting
        )
    last = min(reports, key=lambda each: (_ORDER.index(each.state), each.bytes_done))
    served = {each.revision for each in reports if each.state is ModelState.READY}
    message = pods.describe(last)
    if len(served) > 1:
        message += f"; pods serve {len(served)} different commits: name one of them in the URI"
    return ModelStatus(
        role=role,
        uri=uri,
        state=last.state,
        revision=pinned or last.revision,
        bytes_done=last.bytes_done,
        bytes_total=last.bytes_total,
        message=message,
    )


def _reports(observed: Observed, uri: str) -> list[ModelReport]:
    return [
        report
        for pod in observed.pods
        if pods.is_active(pod)
        for report in pods.reports(pod, observed.progress)
        if report.uri == uri
    ]


def _fetched_commits(observed: Observed) -> Iterator[tuple[str, str]]:
    """Commits that pods have downloaded completely, of the oldest pod last."""
    for pod in sorted(observed.pods, key=_age, reverse=True):
        for report in pods.reports(pod, observed.progress):
            if report.state is ModelState.READY and report.revision is not None:
                yield report.uri, report.revision


def _written_pins(observed: Observed) -> Iterator[tuple[str, str]]:
    """Commits in the ConfigMaps of this resource."""
    for child, manifest in sorted(observed.children.items()):
        if child.kind == CONFIG_MAP.kind and is_controlled_by(manifest, observed.uid):
            yield from read_pins(manifest).items()


def read_pins(config_map: Manifest) -> dict[str, str]:
    """Commits by URI in a ConfigMap; other values are ignored."""
    text = (config_map.get("data") or {}).get(names.PINS_FILE_NAME, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {
        str(uri): str(commit)
        for uri, commit in (found.items() if isinstance(found, dict) else ())
        if re.fullmatch(COMMIT_PATTERN, str(commit))
    }


def _is_pinned(uri: str) -> bool:
    return _commit_of(uri) is not None


def _commit_of(uri: str) -> str | None:
    location = parse_uri(uri)
    is_commit = isinstance(location, HubLocation) and location.is_pinned
    return location.revision if isinstance(location, HubLocation) and is_commit else None


def _age(pod: Manifest) -> tuple[str, str]:
    metadata = pod["metadata"]
    return metadata.get("creationTimestamp", ""), metadata["name"]
