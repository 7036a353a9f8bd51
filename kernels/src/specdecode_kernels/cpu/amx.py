"""Whether Intel's AMX computes sums in the order blocks32, or multiply-adds, with the same bits."""

import errno
import logging
import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from specdecode_kernels.cpu.library import Library

log = logging.getLogger(__name__)

TILES_VARIABLE = "SPECDECODE_TILES"
"""`on` lets AMX compute: no processor that has it has run the comparison of bits yet."""
REFUSALS: Mapping[int, str] = {
    -1: "the compiler of the kernels does not know AMX: use gcc 11 or later",
    -2: "the processor has no amx_bf16, or a hypervisor hides it: see flags in /proc/cpuinfo",
    -3: "the operating system does not keep AMX's registers: use Linux 5.16 or later",
}
"""By the numbers of amx.c, each with the remedy."""


class Products(NamedTuple):
    """Which instructions compute, and the reason."""

    name: Literal["amx", "multiply-adds"]
    reason: str


def choose_products(library: Library) -> Products:
    """Turn AMX on where it is wanted and permitted, and log a refusal once.

    Raises:
        ValueError: the environment variable has a value that does not exist.
    """
    wanted = os.environ.get(TILES_VARIABLE, "")
    if wanted not in ("", "on"):
        raise ValueError(f"{TILES_VARIABLE}={wanted!r} is unknown: set on, or leave it out")
    if not wanted:
        library.use_amx(is_wanted=False)
        return Products("multiply-adds", f"{TILES_VARIABLE} is not set")
    refused = library.use_amx(is_wanted=True)
    if not refused:
        return Products("amx", f"{TILES_VARIABLE} is on")
    reason = REFUSALS.get(refused) or (
        f"Linux refuses AMX's registers ({errno.errorcode.get(refused, refused)}): permit "
        "arch_prctl in the seccomp profile, or use Linux 5.16 or later"
    )
    log.warning("multiply-adds compute sums in the order blocks32, as %s", reason)
    return Products("multiply-adds", reason)
