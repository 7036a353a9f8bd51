"""Wheels that travelled along: unpacked where they can be imported, without pip and network.

A wheel is a zip archive of what belongs on the path; scripts and headers are left out.
"""

import atexit
import platform
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

FOLDER = Path(__file__).resolve().parents[1] / "carry"
ENGINE = ("pydantic", "pydantic_core", "llguidance", "prometheus_client", "yaml")
"""What the engine imports besides what comes with torch and transformers."""
PEERS = ("flashinfer",)


def use_carried(folder: Path = FOLDER) -> list[str]:
    """Unpack what fits this interpreter if anything is missing; return the names of the wheels.

    What the engine lacks goes in front of the path, so that its parts fit each other; a peer alone
    goes after what is there.
    """
    lacks_engine = bool(missing())
    if not lacks_engine and not missing(PEERS):
        return []
    wheels = [file for file in sorted(folder.glob("*.whl")) if fits(file.name)]
    if not wheels:
        return []
    site = tempfile.mkdtemp(prefix="carried-")
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            archive.extractall(site)
    sys.path.insert(0 if lacks_engine else len(sys.path), site)
    return [wheel.name for wheel in wheels]


def missing(names: tuple[str, ...] = ENGINE) -> tuple[str, ...]:
    """Return the names of what cannot be imported."""
    return tuple(name for name in names if find_spec(name) is None)


def fits(name: str, version: tuple[int, int] = sys.version_info[:2]) -> bool:
    """Whether a wheel of this name is for this interpreter and processor."""
    pythons, abi, platforms = name.removesuffix(".whl").split("-")[-3:]
    if platforms != "any" and platform.machine() not in platforms:
        return False
    tags = pythons.split(".")
    if {"py3", f"py{version[0]}{version[1]}", f"cp{version[0]}{version[1]}"} & set(tags):
        return True
    found = re.fullmatch(r"cp3(\d+)", tags[0])
    return abi == "abi3" and found is not None and int(found[1]) <= version[1]
