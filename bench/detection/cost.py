"""What a draft costs that drafts nothing: found unfit, or at 0 draft steps; next to no draft.

The first steps of a stay at 0 draft steps keep hidden states for the draft, and later ones do not.

All are roles of one engine, which goes without its drafter in some steps of the same answers. The
least time of a turn's steps counts: others were disturbed by other processes.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from detection.served import SOUND, example_requests, served_with
from engine.role import NothingIsKept, Role
from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import MIN_PROPOSALS, DraftHealth
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.config import NO_HIDDEN_STATES
from specdecode_engine.schedule.drafting import Drafting

MAX_TOKENS = 200
PROMPT_STEPS = 4  # the first steps of each repeat, which compute its prompts
TURN_STEPS = 8  # in one role, before the next one
BATCHES = (1, 8)
PLAIN, UNFIT = "no draft", "unfit"
RESTING, KEEPING = "0 draft steps", "0 draft steps, hidden states kept"


def measure(repeats: int) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Compare the CPU time of decode steps, eagerly and on static graphs, by batch size.

    Returns:
        What each role adds to a step, as a share: quartiles of turns that follow one another.
    """
    found = {}
    speculation = {"policy": "static", "num_steps": 0, "table": {"1": {"candidate_steps": [0, 2]}}}
    for mode in ("off", "static"):
        with (
            TemporaryDirectory() as folder,
            served_with(
                SOUND, Path(folder) / "head", {"graphs": {"mode": mode}}, **speculation
            ) as core,
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
) -> dict[str, dict[str, float]]:
    """Change the roles of an engine while it answers requests."""
    added: dict[str, list[float]] = {name: [] for name in roles if name != PLAIN}
    for number in range(repeats + 1):  # the first one warms up
        roles[RESTING].take(core)
        for each in example_requests(size, max_tokens=MAX_TOKENS, first=number * size):
            core.submit(each)
        for seconds in _cycles(core, roles):
            for name, shares in added.items():
                shares += [seconds[name] / seconds[PLAIN] - 1] if number else []
    return {name: _quartiles(shares) for name, shares in added.items()}


def _cycles(core: EngineCore, roles: Mapping[str, Role]) -> Iterator[dict[str, float]]:
    """Yield the CPU time of the fastest decode step in each role, close to one another in time."""
    names = list(roles)
    for _ in range(PROMPT_STEPS):
        core.step()
    while core.has_work():
        names = names[1:] + names[:1]
        turns = {name: _take_turn(core, roles[name]) for name in names}
        if all(turns.values()):
            yield {name: min(turn) for name, turn in turns.items()}


def _take_turn(core: EngineCore, role: Role) -> list[float]:
    role.take(core)
    seconds = []
    for _ in range(TURN_STEPS):
        if core.has_work():
            started = time.process_time()
            core.step()
            seconds.append(time.process_time() - started)
    return seconds[1:]  # the first one also ends the step of another role


def _quartiles(values: list[float]) -> dict[str, float]:
    names = ("lower_quartile", "median", "upper_quartile")
    quartiles = statistics.quantiles(values, n=4)
    return {name: round(value, 4) for name, value in zip(names, quartiles, strict=True)}
