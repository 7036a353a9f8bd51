"""Decides whether running engines exchange their draft instead of being replaced. Pure.

A change of nothing but the draft's folder leaves the pod template as it is where the draft is on a
PVC: the claim is mounted as a whole. Then the pods are asked to exchange the draft, one by one, and
keep their template and the name of their boot file. What they run is in an annotation of the
Deployment once all of them do, and their boot file names the draft only then: until it is certain
that engines can use the new draft, one that restarts begins with the old one. A draft that no
engine can read leaves the old one. Where an engine has to start for the draft (another config or
shape), or takes longer than a start, pods are replaced as for any other change.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.model_uri import (
    HubLocation,
    ImageLocation,
    NodeLocation,
    PvcLocation,
    parse_uri,
)
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, Manifest
from specdecode_operator.objects.observed import DraftAnswer, Observed
from specdecode_operator.objects.resource import Resource
from specdecode_operator.objects.rollout import Rollout, rollout, template_annotations
from specdecode_operator.owned import Built, Carrier
from specdecode_operator.owned.config_map import config_map_name

MADE_FOR = f"{names.GROUP}/made-for"
"""Config hash for which a pod was made, where it runs another one by now; in memory alone."""


class PodState(StrEnum):
    """How far a pod has come in exchanging its draft."""

    WAITING = "Waiting"  # it was not asked yet, or does not answer
    READING = "Reading"
    EXCHANGED = "Exchanged"
    REFUSED = "Refused"  # it cannot read the draft
    UNFIT = "NeedsRestart"  # it can use the draft only from its start on


UNDER_WAY = frozenset({PodState.WAITING, PodState.READING})


@dataclass(frozen=True, slots=True)
class WantedDraft:
    """The draft that stable pods should use."""

    path: str
    config_hash: str
    made_for: str
    """Config hash of the pods that are asked: those of the newest template."""

    def state(self, answer: DraftAnswer | None) -> PodState:
        """How far a pod is that answered so."""
        report = answer.report if answer is not None else None
        if report is None:
            return PodState.WAITING
        if (report.path, report.config_hash) == (self.path, self.config_hash):
            return PodState.EXCHANGED
        if report.refused_path == self.path:  # also while it tries again
            return PodState.UNFIT if report.refused_needs_restart else PodState.REFUSED
        return PodState.READING if report.changing_to == self.path else PodState.WAITING


@dataclass(frozen=True, slots=True)
class DraftExchange:
    """An exchange of the draft in running pods, or why they are replaced instead.

    Attributes:
        carrier: the pods that run the configuration; None: they are replaced.
        wanted: what they are asked for.
        states: ready pods by name, with what a person should know.
        is_complete: whether all of them run it.
        why_not: why pods are replaced although the draft alone changes.
    """

    carrier: Carrier | None
    wanted: WantedDraft | None = None
    states: Mapping[str, tuple[PodState, str]] = field(default_factory=dict)
    is_complete: bool = True
    why_not: str = ""

    @property
    def exchanged(self) -> int:
        """Pods that run the configuration."""
        return sum(state is PodState.EXCHANGED for state, _ in self.states.values())

    @property
    def refusal(self) -> str:
        """Why running pods keep the old draft; empty where none refuses the new one."""
        refused = sorted(
            f"{name} refuses the draft: {message}"
            for name, (state, message) in self.states.items()
            if state is PodState.REFUSED
        )
        return refused[0] if refused else ""


def decide(observed: Observed, resource: Resource, built: Built) -> DraftExchange | None:
    """Decide for stable pods that should run `built`; None where no draft is exchanged."""
    live = observed.owned(DEPLOYMENT)
    path = built.boot.speculation.draft_path
    if live is None or path is None:
        return None
    annotations = live["metadata"].get("annotations") or {}
    template = template_annotations(live)
    made_for = str(template.get(names.ANNOTATION_CONFIG_HASH, ""))
    is_carried = annotations.get(names.ANNOTATION_EXCHANGE_HASH) == built.exchange_hash
    has_ranks = resource.spec.parallelism.tensor > 1
    if not is_carried or has_ranks or names.ANNOTATION_BLOCK in template:
        why_not = _why_replaced(live, resource)
        return DraftExchange(None, why_not=why_not) if why_not else None
    runs = str(annotations.get(names.ANNOTATION_CONFIG_HASH, made_for))
    wanted = WantedDraft(path, built.config_hash, made_for)
    carrier = Carrier(made_for, built.config_hash)
    if runs == built.config_hash:
        return DraftExchange(carrier, wanted)
    return _change(observed, resource, live, wanted, Carrier(made_for, runs))


def asked_pods(observed: Observed, wanted: WantedDraft) -> tuple[Manifest, ...]:
    """The ready pods that are to use a draft."""
    return tuple(
        pod
        for pod in observed.pods
        if pods.is_stable(pod) and pods.is_ready(pod) and _made_for(pod) == wanted.made_for
    )


def presented(observed: Observed) -> Observed:
    """Show pods that exchanged their draft under the config hash that they run."""
    found = tuple(_presented(pod, observed.drafts.get(_uid(pod))) for pod in observed.pods)
    return replace(observed, pods=found)


def _change(
    observed: Observed, resource: Resource, live: Manifest, wanted: WantedDraft, now: Carrier
) -> DraftExchange | None:
    """Decide about pods that run another draft; `now` is what they run."""
    asked = asked_pods(observed, wanted)
    if rollout(live) is not Rollout.UNSEEN and (not asked or _is_replacing(live)):
        return None  # nothing serves, or pods are being replaced: new ones begin with the draft
    limit_s = duration_s(resource.spec.lifecycle.startup_timeout)
    states = {}
    for pod in asked:
        answer = observed.drafts.get(_uid(pod))
        state = wanted.state(answer)
        states[str(pod["metadata"]["name"])] = state, _message(state, answer)
        if state is PodState.UNFIT or _is_late(answer, state, wanted, limit_s):
            return DraftExchange(None, why_not=_why_not(pod, state, answer, limit_s))
    if asked and all(state is PodState.EXCHANGED for state, _ in states.values()):
        return DraftExchange(Carrier(wanted.made_for, wanted.config_hash), wanted, states)
    kept = replace(now, draft_path=_draft_of_boot_file(observed, wanted.made_for))
    return DraftExchange(kept, wanted, states, is_complete=False)


def _draft_of_boot_file(observed: Observed, made_for: str) -> str:
    """Folder of the draft with which pods start now; empty if their boot file is lost."""
    name = config_map_name(observed.resource["metadata"]["name"], made_for)
    live = observed.owned(CONFIG_MAP, name) or {}
    try:
        boot = json.loads((live.get("data") or {}).get(names.BOOT_FILE_NAME, "{}"))
        return str(boot.get("speculation", {}).get("draft_path") or "")
    except (ValueError, AttributeError):
        return ""


def _is_replacing(live: Manifest) -> bool:
    """Whether a Deployment has pods of an older template."""
    status = live.get("status") or {}
    return bool(status.get("updatedReplicas", 0) != status.get("replicas", 0))


def _is_late(
    answer: DraftAnswer | None, state: PodState, wanted: WantedDraft, limit_s: float
) -> bool:
    """Whether a pod was asked for this draft so long ago that a new one would have started."""
    if answer is None or state not in UNDER_WAY:
        return False
    return answer.asked == wanted.config_hash and answer.waited_s > limit_s


def _message(state: PodState, answer: DraftAnswer | None) -> str:
    if answer is None or state is PodState.EXCHANGED:
        return ""
    if answer.report is None or state in UNDER_WAY:
        return answer.error
    return answer.report.latest_refusal or ""


def _why_not(pod: Manifest, state: PodState, answer: DraftAnswer | None, limit_s: float) -> str:
    name = pod["metadata"]["name"]
    if state is PodState.UNFIT:
        return f"{name} cannot exchange its draft: {_message(state, answer)}"
    return f"{name} has not exchanged its draft within {limit_s:.0f} s (lifecycle.startupTimeout)"


def _why_replaced(live: Manifest, resource: Resource) -> str:
    """Why the pods of a changed draft are replaced; empty where another draft is not wanted."""
    draft = resource.spec.speculation.draft
    before = (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_DRAFT)
    if draft is None or before in (None, draft.uri):
        return ""
    match parse_uri(draft.uri):
        case HubLocation():
            return "a draft of hf:// is downloaded before an engine starts"
        case ImageLocation():
            return "an image is mounted when a pod starts"
        case NodeLocation():
            return "a folder of a node is mounted when a pod starts"
        case PvcLocation(pvc=claim) if claim not in _claims(live):
            return f"the running pods do not mount the PVC {claim}"
    if resource.spec.parallelism.tensor > 1:
        return "engines of several ranks (parallelism.tensor) exchange no draft while they run"
    return "other settings that need a restart change too"


def _claims(live: Manifest) -> set[str]:
    """Names of the PVCs that running pods mount."""
    volumes = live["spec"]["template"]["spec"].get("volumes", ())
    found = (volume.get("persistentVolumeClaim") for volume in volumes)
    return {str(claim["claimName"]) for claim in found if claim}


def _presented(pod: Manifest, answer: DraftAnswer | None) -> Manifest:
    report = answer.report if answer is not None else None
    own = pods.config_hash_of(pod)
    if report is None or not report.config_hash or report.config_hash == own or own is None:
        return pod
    annotations = pod["metadata"]["annotations"]
    shown = {**annotations, names.ANNOTATION_CONFIG_HASH: report.config_hash, MADE_FOR: own}
    return {**pod, "metadata": {**pod["metadata"], "annotations": shown}}


def _made_for(pod: Manifest) -> str | None:
    annotations = pod["metadata"].get("annotations") or {}
    return annotations.get(MADE_FOR) or pods.config_hash_of(pod)


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"]["uid"])
