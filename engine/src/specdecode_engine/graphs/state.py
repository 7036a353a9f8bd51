"""Everything captured that rounds of one depth use; complete when built, swapped as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.graph_plan.passes import PassKind, PassShape
from specdecode_engine.graphs.runner import Runner


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """The passes of a round on up to `batch_size` sequences."""

    batch_size: int
    runners: Mapping[PassShape, Runner]

    def catch_up_rows(self, wanted: int) -> int:
        """Return the fewest rows that a captured catch-up has and that suffice; else `wanted`."""
        rows = [one.rows for one in self.runners if one.kind is PassKind.CATCH_UP]
        return min((count for count in rows if count >= wanted), default=wanted)


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeState:
    """One depth: its tiers, ascending. Without any, its rounds run as they stand."""

    num_steps: int
    shape: DraftShape
    tiers: tuple[Tier, ...] = ()

    def tier_of(self, batch_size: int) -> Tier | None:
        """Return the smallest tier that holds the batch."""
        return next((tier for tier in self.tiers if tier.batch_size >= batch_size), None)

    def with_tier(self, tier: Tier) -> "RuntimeState":
        """Return a state with one tier more."""
        tiers = sorted((*self.tiers, tier), key=lambda one: one.batch_size)
        return RuntimeState(self.num_steps, self.shape, tuple(tiers))
