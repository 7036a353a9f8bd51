"""Why torch finds no CUDA device: its build, the driver, or what the container is given."""

import ctypes
from typing import ClassVar, NamedTuple

import torch

from specdecode_api.report import TerminationReason

LIBRARY = "libcuda.so.1"
DRIVERS = {12: "525", 13: "580"}
"""First driver branch of a CUDA major version; it runs programs of every minor version."""


class CudaUnavailable(Exception):
    """A CUDA device was requested and cannot be used; the message contains the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CANNOT_SERVE


class DriverTooOld(CudaUnavailable):
    """The NVIDIA driver is older than the CUDA version that torch was built for."""

    reason: ClassVar[TerminationReason] = TerminationReason.DRIVER_TOO_OLD


class CudaVersion(NamedTuple):
    """A version of CUDA."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def driver_version() -> CudaVersion | None:
    """Return the latest CUDA version that the driver supports; None without a driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return CudaVersion(number.value // 1000, number.value % 1000 // 10)


def torch_version() -> CudaVersion | None:
    """Return the CUDA version that torch was built for; None for a build without CUDA."""
    if torch.version.cuda is None:
        return None
    major, minor = torch.version.cuda.split(".")[:2]
    return CudaVersion(int(major), int(minor))


def explain_unavailable() -> CudaUnavailable:
    """Return why torch finds no CUDA device, with the remedy."""
    built, driver = torch_version(), driver_version()
    if built is None:
        return CudaUnavailable(
            f"torch {torch.__version__} is built without CUDA; use the engine's GPU image, or "
            "device cpu"
        )
    if driver is None:
        return CudaUnavailable(
            f"there is no NVIDIA driver ({LIBRARY}); request nvidia.com/gpu on a node with the "
            "NVIDIA container toolkit, or use device cpu"
        )
    if driver.major < built.major:
        branch = DRIVERS.get(built.major, f"for CUDA {built.major}")
        return DriverTooOld(
            f"the NVIDIA driver supports CUDA {driver}, and torch {torch.__version__} is built for "
            f"CUDA {built}; install driver {branch} or later on the node, or use an engine image "
            f"for CUDA {driver.major}"
        )
    return CudaUnavailable(
        f"torch finds no CUDA device, although the driver supports CUDA {driver}; check that the "
        "container is given one (nvidia.com/gpu, CUDA_VISIBLE_DEVICES, nvidia-smi), or use device "
        "cpu"
    )
