"""What a page is made of, as it was read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin.report.history import EngineTotals, WorkHistory


@dataclass(frozen=True, slots=True)
class Gathered:
    """A resource with its trials, revisions and history.

    `problems` contains, by what could not be read (trials, revisions, engines), the error.
    """

    resource: Manifest
    now: datetime
    trials: tuple[Manifest, ...] = ()
    revisions: tuple[Manifest, ...] = ()
    history: WorkHistory | None = None
    totals: EngineTotals | None = None
    has_prometheus: bool = False
    problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def status(self) -> Manifest:
        """The status of the resource; empty where it has none."""
        return self.resource.get("status") or {}

    @property
    def spec(self) -> Manifest:
        """The spec of the resource."""
        return self.resource["spec"]  # type: ignore[no-any-return]
