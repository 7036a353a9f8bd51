"""`python -m bench.operator.timed_operator FILE run …`: the operator, with its callbacks timed.

At the end it writes to FILE, as JSON lines, when each long callback of the event loop ended
(monotonic clock, seconds) and the processor time that its thread took for it (milliseconds).
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

from specdecode_operator.__main__ import main

NOTED_MS = 1.0


def time_callbacks(found: list[tuple[float, float, str]]) -> None:
    """Note long callbacks, by processor time of the thread: other processes do not count."""
    run = asyncio.Handle._run
    collected_ms = 0.0
    gc_started_s = 0.0

    def note_collection(phase: str, _: dict[str, int]) -> None:
        nonlocal collected_ms, gc_started_s
        if phase == "start":
            gc_started_s = time.thread_time()
        else:
            collected_ms += 1000 * (time.thread_time() - gc_started_s)

    gc.callbacks.append(note_collection)

    def timed(handle: asyncio.Handle) -> None:
        nonlocal collected_ms
        collected_ms = 0.0
        started_s = time.thread_time()
        run(handle)
        cpu_ms = 1000 * (time.thread_time() - started_s)
        if cpu_ms > NOTED_MS:
            task = getattr(getattr(handle, "_callback", None), "__self__", None)
            about = repr(task.get_coro()) if isinstance(task, asyncio.Task) else repr(handle)
            found.append((time.monotonic(), cpu_ms, f"gc {collected_ms:.1f} ms; {about}"[:300]))

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    callbacks: list[tuple[float, float, str]] = []
    time_callbacks(callbacks)
    try:
        code = main(sys.argv[2:])
    finally:
        lines = (json.dumps(each) + "\n" for each in callbacks)
        Path(sys.argv[1]).write_text("".join(lines))
    sys.exit(code)
