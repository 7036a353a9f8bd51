"""API keys that clients must send, as OpenAI's clients do: `Authorization: Bearer KEY`.

Only digests are kept, all of the same length, and a request's key is compared with each of them,
so that the time of a refusal reveals nothing about any key. No key is ever logged or shown.
"""

import asyncio
import hashlib
import hmac
import logging
from pathlib import Path

from specdecode_api.report import TerminationReason

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
_REMEDY = (
    "write the keys to it, one per line; in Kubernetes to the Secret that serving.apiKeys names, "
    "for example with: kubectl create secret generic NAME --from-literal=keys=KEY"
)

Digests = frozenset[bytes]


class NoApiKeys(Exception):
    """API keys are required, and none can be read, or one cannot be sent in a header."""

    reason = TerminationReason.API_KEYS_MISSING


def read_digests(path: Path) -> Digests:
    """Read the keys of a file, or of every file in a folder, one per line.

    Kubernetes mounts a Secret as links into a folder whose name begins with a dot; such names are
    skipped.

    Raises:
        NoApiKeys: the path cannot be read, has no key, or has one that a header cannot contain.
    """
    try:
        is_folder = path.is_dir()
        files = sorted(each for each in path.iterdir() if each.is_file()) if is_folder else [path]
        shown = [each for each in files if not (is_folder and each.name.startswith("."))]
        lines = [line for each in shown for line in each.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise NoApiKeys(f"API keys cannot be read from {path}: {reason}; {_REMEDY}") from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise NoApiKeys(f"no API key in {path}; {_REMEDY}")
    bad = [number for number, key in enumerate(keys, 1) if not _fits_header(key)]
    if bad:
        raise NoApiKeys(
            f"key {bad[0]} of {len(keys)} in {path} has a space or a character outside ASCII, "
            "which a header cannot contain; replace the key"
        )
    return frozenset(map(_digest, keys))


def _fits_header(key: str) -> bool:
    return key.isascii() and key.isprintable() and " " not in key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class ApiKeyStore:
    """The valid keys. Owned by the event loop.

    Args:
        path: the file or folder that the keys are read from.
        digests: the digests of the keys at start.
    """

    def __init__(self, path: Path, digests: Digests) -> None:
        self._path = path
        self._digests = digests
        self.error = ""

    def allow(self, key: str) -> bool:
        """Whether a key is valid; takes the same time for valid and invalid ones."""
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    async def watch(self, period_s: float = PERIOD_SECONDS) -> None:
        """Read the keys every `period_s`."""
        while True:
            await asyncio.sleep(period_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the keys again. If that fails, no key is valid: removing a file revokes its keys."""
        try:
            found = await asyncio.to_thread(read_digests, self._path)
        except NoApiKeys as error:
            if str(error) != self.error:
                log.error("every request is refused: %s", error)
            self.error, self._digests = str(error), frozenset()
            return
        self.error = ""
        if found != self._digests:
            self._digests = found
            log.info("API keys were replaced; %d are valid now", len(found))
