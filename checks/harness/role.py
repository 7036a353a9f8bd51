"""Roles of one engine, with a draft, without one, or with another, and how these are compared.

Engines that are equal but for where their weights lie in memory differ by up to a fifth in the time
of a step. So what is compared is one engine, which takes its roles in turns.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_engine.adaptive.policy import Decision
from specdecode_engine.engine import EngineCore
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.steps.model_context import ModelContext


@dataclass(frozen=True, slots=True)
class Role:
    """What steps compute with, and what decides their draft steps; weights and caches stay."""

    context: ModelContext
    drafting: Drafting

    def take(self, core: EngineCore) -> None:
        """Let the next steps of an engine be those of this role."""
        core.context, core.scheduler.drafting = self.context, self.drafting


class NothingIsKept(Drafting):
    """Of an engine without a draft model: its steps keep no hidden states."""

    def feeds_draft(self, decision: Decision) -> bool:
        return False


def compute_prompts(core: EngineCore) -> None:
    """Take steps until every request that was submitted decodes."""
    core.step()
    while any(sequence.is_prefilling for sequence in core.scheduler.running):
        core.step()


def spread(values: Sequence[float], digits: int = 3) -> list[float]:
    """Return the least, the median and the greatest."""
    return [round(one, digits) for one in (min(values), statistics.median(values), max(values))]
