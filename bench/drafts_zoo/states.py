"""What a drafter keeps between steps against a prefill of the same tokens in a fresh engine.

Requests share prefixes, are preempted, verify random numbers of nodes, and change their draft steps
in every step, so that rows are computed late, from cached prefixes and after every accepted path.
"""

from itertools import count

import torch

from drafts_zoo.engines import boot_of, build_drafting, greedy
from drafts_zoo.format import DraftFiles, DraftFormat, RequestState
from drafts_zoo.targets import PROMPTS
from lossless.poison import build_poisoned
from lossless.run import RandomNumSteps
from lossless.verify_rows import RandomVerifyRows
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.engine import EngineCore

LONG_ANSWER = 30
TOLERANCE = 1e-4
CHECKED_EVERY = 4  # steps
PREEMPTED_AT = (6, 13)
BASE = PROMPTS[1]
ARRIVALS = {0: BASE, 1: (*BASE, 11, 12), 5: (*BASE, 13), 9: (*BASE[:14], 50, 51, 52)}
"""Prompts by the step that they arrive before."""


def find_other_state(form: DraftFormat, files: DraftFiles, seed: int) -> str | None:
    """Run requests; return the first part of a request's state that a prefill would not give."""
    core, fresh = _build_restless(form, files, seed), build_drafting(form, files)
    compared = preempted = 0
    for step in count():
        if step in ARRIVALS:
            core.submit(greedy(str(step), ARRIVALS[step], LONG_ANSWER))
        if step in PREEMPTED_AT and core.scheduler.running:
            core.preempt(core.scheduler.running[-1])
            preempted += 1
        core.step()
        if step % CHECKED_EVERY == 0:
            for sequence in _comparable(core):
                compared += 1
                expected = state_after_prefill(form, fresh, sequence.tokens[:-1])
                if difference := _difference(form.state(core, sequence), expected):
                    return f"step {step}, {sequence.computed} tokens: {difference}"
        if step > max(ARRIVALS) and not core.has_work():
            break
    seen = {
        "states": compared,
        "preemptions": preempted,
        "prefix hits": core.scheduler.cache.hit_tokens,
        "changes of draft steps": sum(core.counters.switches.values()),
    }
    missing = [name for name, number in seen.items() if not number]
    return f"the run had no {', no '.join(missing)}" if missing else None


def _build_restless(form: DraftFormat, files: DraftFiles, seed: int) -> EngineCore:
    """Build an engine that draws draft steps in every step, and verified nodes for each request."""
    steps = sorted({0, 1, 2, form.num_steps})
    table = {"1": {"candidate_steps": steps, "update_interval": 1, "warmup_batches": 0}}
    boot = boot_of(form, files, table=table, prefix_cache=True, max_running=3)
    core = build_poisoned(boot)
    core.scheduler.policy = RandomNumSteps(tuple(core.shapes), seed)
    core.choose_rows = RandomVerifyRows(seed)
    return core


def _comparable(core: EngineCore) -> list[Sequence]:
    """Return the decoding requests of which every row is, or can still be, computed."""
    drafter, found = core.context.drafter, list[Sequence]()
    for sequence in core.scheduler.running:
        assert drafter is not None
        if sequence.is_prefilling or sequence.req_index is None:
            continue
        if drafter.is_complete(sequence.req_index):
            found.append(sequence)
    return found


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
