"""What a drafter keeps between steps against a prefill of the same tokens in a fresh engine.

Requests share prefixes, are preempted, verify random numbers of nodes, of the draft model or of
NGRAM, and change their draft steps in every step, so that rows are computed late, from cached
prefixes and after every accepted path.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import torch

from checks.drafts_zoo.engines import PAGE_SIZE, boot_of, build_drafting, greedy
from checks.drafts_zoo.format import DraftFiles, DraftFormat, FormatSettings, RequestState
from checks.drafts_zoo.targets import PROMPTS
from checks.lossless.poison import build_poisoned
from checks.lossless.run import RandomNumSteps, RandomSources
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.engine import EngineCore
from specdecode_engine.schedule.cached_states import CachedStates

LONG_ANSWER = 30
TOLERANCE = 1e-4
CHECKED_EVERY = 4  # steps
PREEMPTED_AT = (6, 13)
BASE = PROMPTS[1]
ARRIVALS = {0: BASE, 1: (*BASE, 11, 12), 5: (*BASE, 13), 9: (*BASE[:14], 50, 51, 52)}
"""Prompts by the step that they arrive before."""


def find_other_state(form: DraftFormat, files: DraftFiles, seed: int) -> str | None:
    """Run requests; return the first part of a request's state that a prefill would not give."""
    core, fresh = build_restless(form, files, seed), build_drafting(form, files)
    drafter = core.context.drafter
    assert drafter is not None

    def is_complete(sequence: Sequence) -> bool:
        """Whether every row is, or can still be, computed, and the latest step kept its own."""
        assert sequence.req_index is not None
        return core.scheduler.drafting.rest.keeps and drafter.is_complete(sequence.req_index)

    def difference(sequence: Sequence) -> str | None:
        expected = state_after_prefill(form, fresh, sequence.tokens[:-1])
        return _difference(form.state(core, sequence), expected)

    return run_restless(core, is_complete, difference)


def build_restless(form: FormatSettings, files: DraftFiles, seed: int) -> EngineCore:
    """Build an engine that draws draft steps in every step.

    Verified nodes are drawn for each request, and whether they are NGRAM's or the draft model's.
    """
    steps = sorted({0, 1, 2, form.num_steps})
    table = {"1": {"candidate_steps": steps, "update_interval": 1, "warmup_batches": 0}}
    boot = boot_of(form, files, table=table, prefix_cache=True, max_running=3, has_fallback=True)
    core = build_poisoned(boot)
    core.scheduler.drafting.policy = RandomNumSteps(tuple(core.shapes), seed)
    core.choose_rows = RandomVerifyRows(seed)
    if core.scheduler.cached_states is not None:
        kept = core.scheduler.cached_states.count
        core.scheduler.cached_states = CachedStates(kept, PAGE_SIZE, least_tokens=PAGE_SIZE)
    if core.context.sources is not None:
        core.context = replace(core.context, sources=RandomSources(seed))
    return core


def run_restless(
    core: EngineCore,
    is_comparable: Callable[[Sequence], bool],
    find_difference: Callable[[Sequence], str | None],
) -> str | None:
    """Run the requests of `ARRIVALS` and preempt some; return the first difference.

    Args:
        is_comparable: whether the state of a decoding request can be compared now.
    """
    compared = preempted = 0
    for step in count():
        if step in ARRIVALS:
            core.submit(greedy(str(step), ARRIVALS[step], LONG_ANSWER))
        if step in PREEMPTED_AT and core.scheduler.running:
            core.preempt(core.scheduler.running[-1])
            preempted += 1
        core.step()
        if step % CHECKED_EVERY == 0:
            for sequence in filter(is_comparable, _decoding(core)):
                compared += 1
                if difference := find_difference(sequence):
                    return f"step {step}, {sequence.computed} tokens: {difference}"
        if step > max(ARRIVALS) and not core.has_work():
            break
    seen = {
        "states": compared,
        "preemptions": preempted,
        "prefix hits": core.scheduler.cache.hit_tokens,
        "changes of draft steps": sum(core.counters.switches.values()),
    }
    if core.context.sources is not None:
        seen["tokens of NGRAM"] = core.counters.sources["ngram"].drafted
    missing = [name for name, number in seen.items() if not number]
    return f"the run had no {', no '.join(missing)}" if missing else None


def _decoding(core: EngineCore) -> list[Sequence]:
    running = core.scheduler.running
    return [one for one in running if not one.is_prefilling and one.req_index is not None]


def state_after_prefill(form: DraftFormat, fresh: EngineCore, tokens: list[int]) -> RequestState:
    """Return what a drafter keeps of a request whose prompt these tokens are."""
    fresh.submit(greedy("fresh", tokens, 2 + form.num_steps))
    fresh.step()
    while fresh.scheduler.running[0].is_prefilling:
        fresh.step()
    state = form.state(fresh, fresh.scheduler.running[0])
    fresh.abort("fresh")
    fresh.step()
    return state


def _difference(state: RequestState, expected: RequestState) -> str | None:
    """Compare the positions that both have."""
    if state.keys() != expected.keys():
        return f"{sorted(state)} are kept, {sorted(expected)} after a prefill"
    for name, (first, rows) in state.items():
        other_first, other = expected[name]
        start = max(first, other_first)
        end = min(first + len(rows), other_first + len(other))
        if end <= start:
            return f"{name}: no position is kept by both"
        pair = rows[start - first : end - first], other[start - other_first : end - other_first]
        if not torch.allclose(*pair, rtol=TOLERANCE, atol=TOLERANCE):
            worst = (pair[0] - pair[1]).abs().flatten(1).amax(1)
            position = start + int(worst.nan_to_num(torch.inf).argmax())
            return f"{name} of position {position} differ from those after a prefill"
    return None
