"""Figures, their targets, and how both are shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of the table; without a target it only explains others."""

    name: str
    text: str
    at_most: float | None = None
    at_least: float | None = None

    def is_missed(self, value: float | None) -> bool:
        """Whether a measured value is on the wrong side of the target."""
        if value is None:
            return False
        above = self.at_most is not None and value > self.at_most
        return above or (self.at_least is not None and value < self.at_least)

    @property
    def target(self) -> str:
        """The target in words."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f">= {self.at_least:g}"


ROWS = (
    Row("children_p50_ms", "O1 new resource to all children, median", at_most=50),
    Row("children_p99_ms", "O1 the same, 99th percentile", at_most=200),
    Row("burst_resources_per_s", "O2 resources of a burst per second"),
    Row("burst_writes_per_resource", "O2 writes that each took"),
    Row("burst_cpu_ms_per_resource", "O2 processor time that each took of the operator"),
    Row("api_resources_per_s", "O2 resources per second from a plain client, same writes"),
    Row("burst_share_of_api_limit", "O2 share of that, median of the turns", at_least=0.6),
    Row("burst_share_lowest", "O2 the same, lowest"),
    Row("burst_share_highest", "O2 the same, highest"),
    Row("steady_writes_per_min", "O3 writes at rest", at_most=0),
    Row("steady_cpu_share", "O3 share of a core at rest, a resync every 300 s", at_most=0.03),
    Row("steady_idle_cpu_share", "O3 the same between resyncs"),
    Row("resync_writes", "O3 writes in a resync", at_most=0),
    Row("resync_cpu_s", "O3 processor time of a resync, all resources looked at"),
    Row("decision_delay_s", "O4 metrics that suffice to a verdict, slowest", at_most=3.5),
    Row("decision_median_s", "O4 the same, median, a look every 2.5 s"),
    Row("decision_undone_s", "O4 the same, to the old table everywhere, slowest"),
    Row("restart_converge_s", "O5 kill to everything looked at", at_most=5),
    Row("restart_cpu_s", "O5 processor time of that"),
    Row("restart_spurious_writes", "O5 writes it did meanwhile", at_most=0),
    Row("many_converge_s", "O5 many resources at once, until all have a status"),
    Row("many_writes_per_min", "O5 writes at rest with so many", at_most=0),
    Row("many_cpu_share", "O5 share of a core at rest, no resync", at_most=0.03),
    Row("many_peak_mib", "O5 peak memory of the operator, in MiB", at_most=512),
    Row("many_restart_s", "O5 kill to everything looked at"),
    Row("many_restart_cpu_s", "O5 processor time of that"),
    Row("many_restart_writes", "O5 writes it did meanwhile", at_most=0),
    Row("ready_share_s", "O6 operator's share of the time to Ready, median", at_most=0.5),
    Row("ready_total_s", "O6 the whole time, with a simulated kubelet"),
    Row("whole_cpu_share", "O7 share of a core with 300 engines in Recommend", at_most=0.15),
    Row("whole_callback_max_ms", "O7 longest callback of the event loop, in ms", at_most=5),
    Row("whole_status_writes_per_min", "O7 status writes per minute of 75 resources"),
    Row("whole_peak_mib", "O7 peak memory of the operator, in MiB", at_most=512),
    Row("trial_cpu_ms_per_look", "O8 a trial of 2 h on 8 pods: CPU per look, in ms", at_most=60),
    Row("trial_callback_max_ms", "O8 longest callback of the event loop, in ms", at_most=5),
    Row("trial_largest_object_kib", "O8 largest object, in KiB", at_most=64),
    Row("trial_written_mib", "O8 written to trial, status and revisions, in MiB", at_most=2),
)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def missed(figures: Figures) -> list[str]:
    """Names of the figures that miss their target."""
    return [row.name for row in ROWS if row.is_missed(figures.get(row.name))]


def table(figures: Figures) -> str:
    """All rows as text."""
    lines = [f"{'':52} {'measured':>10}  target"]
    for row in ROWS:
        value = figures.get(row.name)
        shown = "–" if value is None else f"{value:.4g}"
        note = "  missed" if row.is_missed(value) else ""
        lines.append(f"{row.text:52} {shown:>10}  {row.target}{note}")
    return "\n".join(lines)
