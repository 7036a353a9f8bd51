"""Keys that clients must show, as OpenAI's clients do: `Authorization: Bearer KEY`.

Only digests are kept, all of the same length, and a call's key is compared with every one of them,
so that the time of a refusal says nothing about any key. No key is ever logged or shown.
"""

import asyncio
import hashlib
import hmac
import logging
from pathlib import Path

from specdecode_api.report import Reason

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
_REMEDY = (
    "put keys into it, one in a line; in Kubernetes into the Secret that serving.apiKeys names, "
    "for instance with: kubectl create secret generic NAME --from-literal=keys=KEY"
)

Digests = frozenset[bytes]


class NoApiKeys(Exception):
    """Keys are asked for, and there are none, or none that could be shown."""

    reason = Reason.API_KEYS_MISSING


def read_digests(path: Path) -> Digests:
    """Read the keys of a file, or of every file in a folder, one in a line.

    Kubernetes mounts a Secret as a folder of links whose own names begin with a dot.

    Raises:
        NoApiKeys: when nothing can be read, a key cannot be shown in a header, or there is none.
    """
    try:
        is_folder = path.is_dir()
        files = sorted(each for each in path.iterdir() if each.is_file()) if is_folder else [path]
        shown = [each for each in files if not (is_folder and each.name.startswith("."))]
        lines = [line for each in shown for line in each.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NoApiKeys(f"API keys cannot be read from {path}: {what}; {_REMEDY}") from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise NoApiKeys(f"no API key in {path}; {_REMEDY}")
    bad = [number for number, key in enumerate(keys, 1) if not _can_be_shown(key)]
    if bad:
        raise NoApiKeys(
            f"key {bad[0]} of {len(keys)} in {path} has a space or a letter beyond ASCII, which no "
            "header carries: replace it"
        )
    return frozenset(map(_digest, keys))


def _can_be_shown(key: str) -> bool:
    return key.isascii() and key.isprintable() and " " not in key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class ApiKeys:
    """The keys that count now. Owned by the event loop.

    Args:
        path: the file or folder they are read from.
        digests: what was read there at start.
    """

    def __init__(self, path: Path, digests: Digests) -> None:
        self._path = path
        self._digests = digests
        self.complaint = ""

    def allow(self, key: str) -> bool:
        """Whether a key counts; takes as long for one that does as for one that does not."""
        shown = _digest(key)
        matches = [hmac.compare_digest(shown, known) for known in self._digests]
        return any(matches)

    async def watch(self, period_s: float = PERIOD_SECONDS) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(period_s)
            await self.look()

    async def look(self) -> None:
        """Look once. Keys that cannot be read any more count no longer: revoking them is safe."""
        try:
            found = await asyncio.to_thread(read_digests, self._path)
        except NoApiKeys as error:
            if str(error) != self.complaint:
                log.error("every call is refused: %s", error)
            self.complaint, self._digests = str(error), frozenset()
            return
        self.complaint = ""
        if found != self._digests:
            self._digests = found
            log.info("API keys were exchanged; %d count now", len(found))
