"""A user's commands to a trial, as annotations that contain its id.

Level-triggered: an annotation holds for as long as it is there, and hits no other trial. One that
names what is neither tried nor wanted does nothing, which is reported once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_api import names
from specdecode_operator.trial.record import AnnotationCommand

VERBS = {
    "pause": names.ANNOTATION_PAUSE,
    "resume": names.ANNOTATION_RESUME,
    "promote": names.ANNOTATION_PROMOTE,
    "abort": names.ANNOTATION_ABORT,
}
MAX_ID = 64


@dataclass(frozen=True, slots=True)
class Commands:
    """The id that each verb names now; empty where it is not asked for."""

    pause: str = ""
    resume: str = ""
    promote: str = ""
    abort: str = ""

    def wants_pause(self, target_id: str) -> bool:
        """Whether a trial is to rest. Resuming it needs no removal of the other annotation."""
        return self.pause == target_id and self.resume != target_id


def read_commands(annotations: Mapping[str, str] | None) -> Commands:
    """Read the annotations of a resource."""
    found = annotations or {}
    return Commands(**{verb: str(found.get(key, ""))[:MAX_ID] for verb, key in VERBS.items()})


def answers(
    wanted: Commands, known: Mapping[str, AnnotationCommand], running: str, pending: str
) -> dict[str, AnnotationCommand]:
    """Return for every annotation whether it had an effect; an answered one is not repeated.

    Args:
        running: id of the trial that runs, or empty.
        pending: id of what the spec wants and is not in force, or empty.
    """
    told: dict[str, AnnotationCommand] = {}
    for verb in VERBS:
        target = getattr(wanted, verb)
        if not target:
            continue
        before = known.get(verb)
        hits = {running, pending} if verb == "promote" else {running}
        if before is not None and before.id == target and (before.is_done or target not in hits):
            told[verb] = before
        elif target in hits:
            told[verb] = AnnotationCommand(verb, target, True, f"{verb} of {target} is carried out")
        else:
            told[verb] = AnnotationCommand(verb, target, False, _ignored(verb, target, running))
    return told


def _ignored(verb: str, target: str, running: str) -> str:
    now = f"trial {running} runs" if running else "no trial runs"
    return f"{verb} of {target} does nothing: {now}; name the id of status.trial"
