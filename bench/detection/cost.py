"""What a draft that was found unfit still costs: next to an engine without a draft."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detection.served import draft_of, example_requests, run_all, served_boot, served_with
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

DAMAGE = "random weights"
MAX_TOKENS = 96
BATCHES = (1, 8)


def measure(pairs: int) -> dict[str, dict[str, dict[str, float]]]:
    """Compare the CPU time of equal answers, eagerly and on static graphs, by batch size.

    Returns:
        What the unfit draft adds, as a share of the time without a draft: quartiles of `pairs`.
    """
    found = {}
    for mode in ("off", "static"):
        with engines(graphs={"mode": mode}) as (plain, unfit):
            found[mode] = {str(size): _compare(plain, unfit, size, pairs) for size in BATCHES}
    return found


@contextmanager
def engines(**boot: Any) -> Iterator[tuple[EngineCore, EngineCore]]:
    """Build an engine without a draft and one that knows that its draft is unfit.

    Args:
        boot: parts of the boot file, for both.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        plain = build_core(EngineBoot.model_validate({**served_boot(), **boot}))
        served = served_with(DAMAGE, folder / "draft", boot, policy="static")
        unfit = stack.enter_context(served)
        run_all(unfit, example_requests(40, max_tokens=16))
        assert draft_of(unfit).is_unfit
        while unfit.idle_step():
            """Capture what an engine without a draft has from the start."""
        yield plain, unfit


def _compare(plain: EngineCore, unfit: EngineCore, size: int, pairs: int) -> dict[str, float]:
    """Let both engines answer the same requests in turns, in changing order."""
    added = []
    for pair in range(pairs + 1):  # the first one warms up
        requests = example_requests(size, max_tokens=MAX_TOKENS, first=pair * size)
        order = (plain, unfit) if pair % 2 else (unfit, plain)
        seconds = {id(core): _cpu_seconds(core, requests) for core in order}
        added.append(seconds[id(unfit)] / seconds[id(plain)] - 1)
    quartiles = statistics.quantiles(added[1:], n=4)
    names = ("lower_quartile", "median", "upper_quartile")
    return {name: round(value, 4) for name, value in zip(names, quartiles, strict=True)}


def _cpu_seconds(core: EngineCore, requests: list[Request]) -> float:
    started = time.process_time()
    run_all(core, requests)
    return time.process_time() - started
