"""The token by which engines know this router."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from specdecode_api.key_mask import without_key
from specdecode_api.names import ROUTER_TOKEN_KEY

log = logging.getLogger(__name__)

READ_SECONDS: Final = 2.0


class NoToken(Exception):
    """The token cannot be read; the message has the remedy."""


def read_token(path: Path) -> str:
    """Read the token of a file, or of the file `token` in a folder.

    Raises:
        NoToken: it cannot be read, or a header cannot contain it.
    """
    file = path / ROUTER_TOKEN_KEY if path.is_dir() else path
    try:
        lines = file.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise NoToken(
            f"the token of the router cannot be read from {without_key(str(file))}: {reason}; "
            "write a token to it that the engines read with --router-token-file"
        ) from None
    if not lines or not lines[0].isascii() or not lines[0].isprintable():
        raise NoToken(f"{file} contains no token of printable ASCII characters; write one to it")
    return lines[0]


class RouterToken:
    """The current token of a file or folder; an unreadable file leaves the last one in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.value = ""
        self.error: str | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the token again."""
        try:
            self.value, self.error = read_token(self._path), None
        except NoToken as error:
            if str(error) != self.error:
                log.error("%s", error)
            self.error = str(error)

    async def watch(self) -> None:
        """Read the token again every two seconds."""
        while True:
            await asyncio.sleep(READ_SECONDS)
            await asyncio.to_thread(self.refresh)
