"""What a draft costs that drafts nothing: found unfit, or at 0 draft steps; next to no draft.

The first steps of a stay at 0 draft steps keep hidden states for the draft, and later ones do not.

All are roles of one engine, which gives the same answers in each of them, one role after another.
The least time of each turn of steps counts: others were disturbed by other processes.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from checks.detection.served import SOUND, example_requests, served_with
from checks.harness.role import NothingIsKept, Role, compute_prompts, spread
from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import MIN_PROPOSALS, DraftHealth
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.target.config import NO_HIDDEN_STATES
from specdecode_engine.schedule.drafting import Drafting

MAX_TOKENS = 200
TURNS, TURN_STEPS = 11, 16  # of an answer; requests begin and end in different steps
BATCHES = (1, 8)
RUNS = 3  # of `repeats` each; their spread is the error of a figure
PLAIN, UNFIT = "no draft", "unfit"
RESTING, KEEPING = "0 draft steps", "0 draft steps, hidden states kept"


def measure(repeats: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Compare the CPU time of decode steps, eagerly and on static graphs, by batch size.

    Returns:
        What each role adds to a step, as a share: the least, the median and the greatest of runs.
    """
    found = {}
    speculation = {"policy": "static", "num_steps": 0, "table": {"1": {"candidate_steps": [0, 2]}}}
    for mode in ("off", "static"):
        boot = {"graphs": {"mode": mode}, "memory": {"prefix_cache": False}}
        with (
            TemporaryDirectory() as folder,
            served_with(SOUND, Path(folder) / "head", boot, **speculation) as core,
        ):
            roles = make_roles(core)
            found[mode] = {str(size): _compare(core, roles, size, repeats) for size in BATCHES}
    return found


def make_roles(core: EngineCore) -> dict[str, Role]:
    """Find the draft of an engine unfit, capture the graphs that this needs, and keep both ways."""
    drafting = core.scheduler.drafting
    nothing_fits = FirstPosition(10 * MIN_PROPOSALS, 0, MIN_PROPOSALS)
    core.judge_draft(Decision(2, 1, 0, Reason.STATIC), nothing_fits, 0.0)
    while core.idle_step():
        """Capture graphs that keep nothing for the draft."""
    assert drafting.is_unfit
    policy = drafting.policy
    alone = replace(core.context, drafter=None, aux_spec=NO_HIDDEN_STATES)
    plain = Role(alone, NothingIsKept(policy))
    return {
        PLAIN: plain,
        UNFIT: Role(core.context, drafting),
        RESTING: Role(core.context, Drafting(policy, DraftHealth(), drafting.rest)),
        KEEPING: Role(core.context, Drafting(policy, DraftHealth())),
        "no draft again": plain,
    }


def _compare(
    core: EngineCore, roles: Mapping[str, Role], size: int, repeats: int
) -> dict[str, list[float]]:
    added: dict[str, list[float]] = {name: [] for name in roles if name != PLAIN}
    for _ in range(RUNS):
        least = _least_seconds(core, roles, size, repeats)
        for name, shares in added.items():
            shares.append(least[name] / least[PLAIN] - 1)
    return {name: spread(shares, digits=4) for name, shares in added.items()}


def _least_seconds(
    core: EngineCore, roles: Mapping[str, Role], size: int, repeats: int
) -> dict[str, float]:
    """Return the CPU time of the same answers in each role: of each turn, the least of repeats."""
    turns: dict[str, list[list[float]]] = {name: [] for name in roles}
    for _ in range(repeats):
        for name in random.sample(list(roles), len(roles)):
            roles[name].take(core)
            for each in example_requests(size, max_tokens=MAX_TOKENS):
                core.submit(each)
            turns[name].append(list(_time_turns(core)))
    return {name: sum(map(min, zip(*found, strict=True))) for name, found in turns.items()}


def _time_turns(core: EngineCore) -> Iterator[float]:
    """Decode what was submitted; yield the CPU time of turns of steps, of all requests each."""
    compute_prompts(core)
    for _ in range(TURNS):
        started_s = time.process_time()
        for _ in range(TURN_STEPS):
            core.step()
        yield time.process_time() - started_s
    while core.has_work():
        core.step()
