"""How far engines and trials are, from what they report."""

from collections.abc import Iterator
from dataclasses import dataclass

from specdecode_api.duration import duration_s
from specdecode_api.report import ModelReport, ModelState, Progress, StartProgress
from specdecode_api.terminal_chat.screen import printable
from specdecode_operator.judge.guard import Guard
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.pods import describe_bytes
from specdecode_operator.plugin.wording import age


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """What a pod or a trial does; `share` is from 0 to 1, None if that is not counted."""

    subject: str
    activity: str
    share: float | None
    text: str


def pod_progress(pod: str, progress: Progress) -> Iterator[ProgressLine]:
    """What a pod downloads, loads, captures or measures; nothing once it serves."""
    for model in progress.models:
        if model.state is not ModelState.READY:
            yield _download(pod, model)
    if progress.start is not None:
        yield _start(pod, progress.start)


def model_progress(resource: Manifest) -> Iterator[ProgressLine]:
    """Downloads by the status of a resource: those of the pod with the least progress."""
    for given in (resource.get("status") or {}).get("models") or ():
        if (state := str(given.get("state", ""))) != ModelState.READY:
            done, total = given.get("bytesDone") or 0, given.get("bytesTotal")
            yield _download_line("models", state, str(given.get("role", "")), done, total)


def trial_progress(trial: Manifest, resource: Manifest) -> ProgressLine:
    """How long a running trial has measured, of the longest time that it may."""
    status = trial.get("status") or {}
    measured_s, pairs = status.get("measuredSeconds") or 0, status.get("pairs")
    longest_s = _longest_s(trial, resource)
    text = f"measured {age(measured_s)} of at most {age(longest_s)}"
    if pairs is not None:
        text += f", {pairs} pairs"
    activity = f"trial {status.get('phase') or 'Pending'!s}"
    return ProgressLine(trial["metadata"]["name"], activity, _share(measured_s, longest_s), text)


def _longest_s(trial: Manifest, resource: Manifest) -> float:
    rollout = (resource.get("spec") or {}).get("rollout") or {}
    for guard in ((trial.get("spec") or {}).get("guard"), rollout.get("guard")):
        if (text := (guard or {}).get("maxDuration")) and (longest_s := duration_s(text)) > 0:
            return longest_s
    return Guard().max_duration_s


def _download(pod: str, model: ModelReport) -> ProgressLine:
    return _download_line(pod, model.state, model.role, model.bytes_done, model.bytes_total)


def _download_line(
    subject: str, state: str, role: str, done: int, total: int | None
) -> ProgressLine:
    activity = f"download of the {role}"
    if state != ModelState.DOWNLOADING or not total:
        return ProgressLine(subject, activity, None, state)
    return ProgressLine(subject, activity, _share(done, total), describe_bytes(done, total))


def _start(pod: str, start: StartProgress) -> ProgressLine:
    stage = printable(start.stage)
    if not start.total:
        return ProgressLine(pod, stage, None, "")
    counts = f"{start.done} of {start.total}"
    text = describe_bytes(start.done, start.total) if start.unit == "B" else counts
    return ProgressLine(pod, stage, _share(start.done, start.total), text)


def _share(done: float, total: float) -> float:
    return max(0.0, min(1.0, done / total)) if total > 0 else 1.0
