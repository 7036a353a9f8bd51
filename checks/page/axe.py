"""axe-core, which finds violations of the Web Content Accessibility Guidelines, from npm."""

import base64
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import httpx

from checks.harness.devtools import Tab
from checks.harness.installation import PeerUnavailable, default_cache

VERSION = "4.11.4"
SHA512 = "KunSNx+TVpkAw/6ULfhnx+HWRecjqZGTOyquAoWHYLRSdK1tB5Ihce1ZW+UY3fj33bYAFWPu7W/GRSmmrCGuxA=="
URL = f"https://registry.npmjs.org/axe-core/-/axe-core-{VERSION}.tgz"
PROGRAM = "package/axe.min.js"
RUN = """
axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then(found =>
  found.violations.map(each => each.id + ': ' + each.nodes.map(node => node.html).join(' ')))
"""


def axe_program() -> str:
    """Return the program; it is downloaded once, and checked against its digest.

    Raises:
        PeerUnavailable: it cannot be downloaded, or is another one.
    """
    file = default_cache() / f"axe-core-{VERSION}.min.js"
    if not file.exists():
        _download(file)
    return file.read_text("utf-8")


async def violations(tab: Tab) -> Any:
    """Return what breaks WCAG 2.1 A and AA on the page that is open."""
    await tab.value(axe_program() + ";0")
    return await tab.value(RUN)


def _download(file: Path) -> None:
    try:
        archive = httpx.get(URL, timeout=60, follow_redirects=True).raise_for_status().content
    except httpx.HTTPError as error:
        raise PeerUnavailable(f"{URL}: {error}") from None
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != SHA512:
        raise PeerUnavailable(f"{URL} is not axe-core {VERSION}: its SHA-512 differs")
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        found = members.extractfile(PROGRAM)
        assert found is not None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found.read())
