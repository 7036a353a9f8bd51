"""Waits until nothing else runs: figures that are compared between machines need an idle one."""

import os
import sys
import time

MAX_LOAD_VARIABLE = "BENCH_MAX_LOAD"
DEFAULT_MAX_LOAD = 0.5
PATIENCE_S = 180.0
_INTERVAL_S = 5.0


class MachineBusy(Exception):
    """Other processes run; the message has the load and the remedy."""


def wait_until_idle(patience_s: float = PATIENCE_S) -> float:
    """Return the load of the last minute when it is low enough.

    Raises:
        MachineBusy: it stayed above the limit.
        ValueError: the variable is not a number.
    """
    most = max_load()
    ends_s = time.monotonic() + patience_s
    while (load := os.getloadavg()[0]) > most:
        if time.monotonic() >= ends_s:
            raise MachineBusy(
                f"the load of the last minute is {load:.2f}, more than {most:g}: stop what else "
                f"runs on this machine, or set {MAX_LOAD_VARIABLE} to measure nevertheless"
            )
        print(f"waiting until the load {load:.2f} is at most {most:g}", file=sys.stderr, flush=True)
        time.sleep(min(_INTERVAL_S, max(0.0, ends_s - time.monotonic())))
    return load


def max_load() -> float:
    """Return the load above which nothing is measured."""
    wanted = os.environ.get(MAX_LOAD_VARIABLE, "")
    try:
        return float(wanted) if wanted else DEFAULT_MAX_LOAD
    except ValueError:
        raise ValueError(
            f"{MAX_LOAD_VARIABLE}={wanted!r} is not a number; set it to a load"
        ) from None
