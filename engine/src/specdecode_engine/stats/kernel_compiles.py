"""Counts the Triton kernels that this process compiles while it serves, and logs each.

Whatever is compiled then delays requests by seconds, and was missing from the list at start.
"""

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


class CompileCounter:
    """Compilations since `watch`; one per process, as Triton's hook is."""

    def __init__(self) -> None:
        self.total = 0

    def watch(self) -> None:
        """Count from now on; a kernel that is read from the cache on disk counts as well."""
        import triton

        self.total = 0
        triton.knobs.runtime.jit_post_compile_hook = self._count

    def stop(self) -> None:
        """Count no more."""
        import triton

        triton.knobs.runtime.jit_post_compile_hook = None

    def _count(self, *, fn: Any, compile: Mapping[str, Any], **_: Any) -> None:
        self.total += 1
        signature, constants = dict(compile["signature"]), compile["constants"]
        names = list(signature)
        shown = {names[path[0]]: value for path, value in constants.items() if len(path) == 1}
        log.warning(
            "compiled %s(%s) while serving; requests waited for it",
            fn.name,
            ", ".join(f"{name}: {kind}" for name, kind in (signature | shown).items()),
        )


AFTER_READY = CompileCounter()
