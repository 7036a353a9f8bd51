"""The bill of materials of an image: every wheel of the lock, and every Debian package.

CycloneDX 1.6 JSON. It is written from uv.lock and compared with what the image really holds.
"""

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.layout import Layout
from scripts.release_steps.lock import LockedWheel

_DIST_INFO = re.compile(
    r"^(?:\./)?opt/venv/lib/python[^/]+/site-packages/([^/]+)-([^/-]+)\.dist-info/METADATA$"
)
_DPKG = re.compile(r"^(?:\./)?var/lib/dpkg/status$")


@dataclass(frozen=True, slots=True)
class Contents:
    """What an image holds: Python distributions and Debian packages, as (name, version)."""

    distributions: frozenset[tuple[str, str]]
    debian: tuple[tuple[str, str, str], ...]  # name, version, architecture


def read_contents(layout: Layout) -> Contents:
    """Read an image's layers; the highest list of Debian packages counts."""
    distributions: set[tuple[str, str]] = set()
    status = ""
    for layer in layout.layers():
        for member in layer:
            if found := _DIST_INFO.match(member.name):
                distributions.add((canonicalize_name(found[1]), found[2]))
            elif _DPKG.match(member.name) and (file := layer.extractfile(member)) is not None:
                status = file.read().decode()
    return Contents(frozenset(distributions), tuple(installed_packages(status)))


def installed_packages(status: str) -> Iterable[tuple[str, str, str]]:
    """Read name, version and architecture of installed packages from dpkg's status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            yield fields["Package"], fields["Version"], fields["Architecture"]


def compare(
    wheels: Sequence[LockedWheel], members: Sequence[str], version: str, contents: Contents
) -> None:
    """Check that an image holds the wheels of the lock, our own packages, and no others.

    Raises:
        ReleaseError: with each difference.
    """
    wanted = {(wheel.name, wheel.version) for wheel in wheels}
    wanted |= {(f"specdecode-{member}", version) for member in members}
    missing = sorted(wanted - contents.distributions)
    surplus = sorted(contents.distributions - wanted)
    if missing or surplus:
        raise ReleaseError(
            f"the image is not that of uv.lock: {missing} missing, {surplus} not locked; "
            "build it again without a cache"
        )


def bill_of_materials(
    name: str,
    version: str,
    digest: str,
    wheels: Sequence[LockedWheel],
    members: Sequence[str],
    contents: Contents,
) -> dict[str, Any]:
    """Write the bill of an image's manifest.

    Its serial number follows the digest, so the same image has the same bill.
    """
    components = [_wheel(wheel) for wheel in wheels]
    components += [_library(f"specdecode-{member}", version) for member in members]
    components += [_debian(*package) for package in contents.debian]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "name": name,
                "version": version,
                "hashes": [_sha256(digest.removeprefix("sha256:"))],
            }
        },
        "components": components,
    }


def _wheel(wheel: LockedWheel) -> dict[str, Any]:
    assert wheel.url is not None, f"{wheel.name} has no wheel: check the platform first"
    assert wheel.sha256 is not None
    return {
        **_library(wheel.name, wheel.version),
        "hashes": [_sha256(wheel.sha256)],
        "externalReferences": [{"type": "distribution", "url": wheel.url}],
    }


def _library(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def _debian(name: str, version: str, architecture: str) -> dict[str, Any]:
    escaped = version.replace(":", "%3A").replace("+", "%2B")
    purl = f"pkg:deb/debian/{name}@{escaped}?arch={architecture}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def _sha256(content: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": content}
