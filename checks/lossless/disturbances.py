"""What happens to an engine that serves: memory runs out, drafts, tables and verdicts change.

Drawn apart from cases, which therefore stay those of their seeds.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import BUDGET, PROBE_INTERVAL, DraftHealth
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.engine import EngineCore

SHARE = 0.5
"""Of the cases."""
STEPS = 60
"""The last step at which one happens."""
STEP_LIMITS_S = (math.inf, math.inf, 1e-6, 0.0005, 0.003)
KEPT_ROWS = (0, 1, 3, 20)
BAD = FirstPosition(proposed=1000, accepted=0, requests=100)
GOOD = FirstPosition(proposed=100, accepted=100, requests=10)


class Disturbances:
    """Disturbs one case at random steps.

    Args:
        seed: of the run and of the case.
        draft: folder of the running draft; None where it has no files.
    """

    def __init__(self, seed: str, core: EngineCore, draft: Path | None) -> None:
        self.seen: Counter[str] = Counter()
        self._rng = random.Random(f"{seed}/disturbances")
        self._core = core
        self._draft = draft
        self._steps: frozenset[int] = frozenset()
        if self._rng.random() < SHARE:
            count = self._rng.choice((1, 3, 8))
            self._steps = frozenset(self._rng.sample(range(1, STEPS), count))
            self._prepare()

    def _prepare(self) -> None:
        """Let the draft rest early, and be tested."""
        core, drafting = self._core, self._core.scheduler.drafting
        core._launcher = FailingLauncher(core._launcher)  # type: ignore[assignment]
        if core.context.drafter is None:
            return
        drafting.rest._kept = min(drafting.rest._kept, self._rng.choice(KEPT_ROWS))
        drafting.health = DraftHealth()

    def before(self, step: int) -> None:
        """Disturb the engine before a step, or do nothing."""
        if step not in self._steps:
            return
        is_divided = self._core.context.ranks.size > 1
        actions: list[Callable[[], None]] = [self._reload]
        actions += [] if is_divided else [self._run_out_of_memory]
        if self._core.scheduler.drafting.health is not None:
            actions += [] if is_divided else [self._exchange]
            actions += [self._find_unfit, self._find_fit, self._probe]
        chosen = self._rng.choice(actions)
        chosen()
        self.seen[f"disturbed: {chosen.__name__.strip('_')}"] += 1

    def _reload(self) -> None:
        """Change the candidates of every range, and the limit of a step's time."""
        core = self._core
        entries = [
            replace(entry, candidate_steps=self._some_of(tuple(core.shapes)))
            for entry in core.scheduler.drafting.policy.table.ranges
        ]
        name, limit_s = f"{self._rng.getrandbits(32):x}", self._rng.choice(STEP_LIMITS_S)
        core.reload(RangeTable(entries, name, limit_s))

    def _some_of(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(self._rng.sample(steps, self._rng.randint(1, len(steps)))))

    def _run_out_of_memory(self) -> None:
        launcher: Any = self._core._launcher
        if self._core.scheduler._reduced_to is None:  # else requests may end with an error
            launcher.fail_next(after=self._rng.random() < 0.6)

    def _exchange(self) -> None:
        """Copy the draft over itself."""
        stage = self._core.stage_draft
        if stage is not None and self._draft is not None:
            for copy in stage(self._draft):
                copy()

    def _find_unfit(self) -> None:
        decision = Decision(1, 1, 0, Reason.STATIC)
        self._core.judge_draft(decision, BAD, 0.01)

    def _find_fit(self) -> None:
        health = self._core.scheduler.drafting.health
        if health is not None and health.is_unfit:
            self._core.judge_draft(Decision(1, 1, 0, Reason.UNFIT_PROBE), GOOD, 0.01)

    def _probe(self) -> None:
        """Let the next request probe an unfit draft."""
        health = self._core.scheduler.drafting.health
        if health is not None:
            health._probed_at = health._steps - PROBE_INTERVAL
            health._busy_s = 2 * (health._probe_s + health._latest_probe_s) / BUDGET


class FailingLauncher:
    """Launches steps, and runs out of memory before one, or once all of it has run."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._after: bool | None = None

    def fail_next(self, *, after: bool) -> None:
        self._after = after

    def launch(self, *arguments: Any) -> Any:
        after, self._after = self._after, None
        if after is False:
            raise torch.OutOfMemoryError("before a step")
        launched = self._own.launch(*arguments)
        if after:
            raise torch.OutOfMemoryError("after a step")
        return launched
