"""The tokens of routers over time. Pure: (stored Secret, time, a fresh token) → the next Secret.

Engines accept every token of the Secret, routers send that of the key `token`. The kubelet updates
the volumes of pods one after another, within about a minute and a half, so a rotation has three
steps: engines get the next token, then routers send it, then the previous one is removed.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from specdecode_api import names
from specdecode_operator.objects.kinds import SECRET, Manifest

NEXT_KEY: Final = "next"
PREVIOUS_KEY: Final = "previous"
LIFETIME: Final = timedelta(days=30)
"""Of a token, before the next one is made."""
STEP: Final = timedelta(minutes=5)
"""Between the steps of a rotation: all kubelets have updated their volumes by then."""


@dataclass(frozen=True, slots=True)
class RotationStep:
    """The Secret to write, None if it is as it should be, and when to look again."""

    secret: Manifest | None
    due_s: float


def next_step(
    stored: Manifest | None, namespace: str, now: datetime, fresh_token: str
) -> RotationStep:
    """Decide the next step of a rotation, or the first Secret.

    A Secret that another owner manages is used as it is.
    """
    if stored is None:
        return _written(namespace, {names.ROUTER_TOKEN_KEY: fresh_token}, now, LIFETIME)
    if not _is_ours(stored):
        return RotationStep(None, LIFETIME.total_seconds())
    tokens = _tokens(stored)
    current = tokens.get(names.ROUTER_TOKEN_KEY)
    if current is None:
        return _written(namespace, {names.ROUTER_TOKEN_KEY: fresh_token}, now, LIFETIME)
    wait = LIFETIME if tokens.keys() == {names.ROUTER_TOKEN_KEY} else STEP
    left = _changed_at(stored, now, wait) + wait - now
    if left > timedelta():
        return RotationStep(None, left.total_seconds())
    if NEXT_KEY in tokens:
        moved = {names.ROUTER_TOKEN_KEY: tokens[NEXT_KEY], PREVIOUS_KEY: current}
        return _written(namespace, moved, now, STEP)
    if PREVIOUS_KEY in tokens:
        return _written(namespace, {names.ROUTER_TOKEN_KEY: current}, now, LIFETIME)
    prepared = {names.ROUTER_TOKEN_KEY: current, NEXT_KEY: fresh_token}
    return _written(namespace, prepared, now, STEP)


def current_token(secret: Manifest) -> str | None:
    """The token that routers and the operator send: the first line of its key; None without one."""
    lines = _tokens(secret).get(names.ROUTER_TOKEN_KEY, "").split()
    return lines[0] if lines else None


def _written(
    namespace: str, tokens: dict[str, str], now: datetime, wait: timedelta
) -> RotationStep:
    encoded = {key: base64.b64encode(token.encode()).decode() for key, token in tokens.items()}
    manifest = {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": names.ROUTER_SECRET,
            "namespace": namespace,
            "labels": {
                names.LABEL_PART_OF: names.PART_OF,
                names.LABEL_COMPONENT: names.COMPONENT_ROUTER,
                names.LABEL_MANAGED_BY: names.FIELD_MANAGER,
            },
            "annotations": {names.ANNOTATION_TOKENS_CHANGED: now.isoformat(timespec="seconds")},
        },
        "type": "Opaque",
        "data": encoded,
    }
    return RotationStep(manifest, wait.total_seconds())


def _is_ours(stored: Manifest) -> bool:
    labels = stored["metadata"].get("labels") or {}
    return bool(labels.get(names.LABEL_MANAGED_BY) == names.FIELD_MANAGER)


def _tokens(stored: Manifest) -> dict[str, str]:
    """Return the tokens of the keys that a rotation knows; what cannot be read is missing."""
    found: dict[str, str] = {}
    for key in (names.ROUTER_TOKEN_KEY, NEXT_KEY, PREVIOUS_KEY):
        try:
            text = base64.b64decode((stored.get("data") or {}).get(key, ""), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
        if text.strip():
            found[key] = text
    return found


def _changed_at(stored: Manifest, now: datetime, wait: timedelta) -> datetime:
    """Return when the tokens last changed; so long ago that a step is due if that is not known.

    A little in the future is another node's clock; it counts as now.
    """
    annotations = stored["metadata"].get("annotations") or {}
    text = annotations.get(names.ANNOTATION_TOKENS_CHANGED, "")
    try:
        changed = datetime.fromisoformat(text)
    except ValueError:
        return now - wait
    is_readable = changed.tzinfo is not None and changed <= now + STEP
    return min(changed, now) if is_readable else now - wait
