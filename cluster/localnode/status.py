"""Reports how each part of the node is."""

import json
from dataclasses import asdict, dataclass

from localnode import lifecycle, processes
from localnode.paths import Paths


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part of the node: `running`, `dead` (it ran once), or `stopped`."""

    name: str
    state: str
    pid: int | None


def part_statuses(paths: Paths) -> list[PartStatus]:
    """Look at each part of a whole node."""
    records = processes.read_records(paths.records)
    return [_part_status(name, records.get(name)) for name in lifecycle.WHOLE_NODE]


def status_lines(paths: Paths, *, as_json: bool) -> tuple[list[str], bool]:
    """Render the report, and return whether all that was started is healthy."""
    parts = part_statuses(paths)
    reached = lifecycle.read_reached(paths)
    healthy = bool(reached) and lifecycle.is_healthy(paths, reached)
    if as_json:
        report = {
            "healthy": healthy,
            "kubeconfig": str(paths.kubeconfig),
            "parts": [asdict(part) for part in parts],
        }
        return [json.dumps(report, indent=1)], healthy
    lines = [f"{part.name:<24} {part.state:<8} {part.pid or ''}".rstrip() for part in parts]
    return [*lines, f"{'node':<24} {'healthy' if healthy else 'not healthy'}"], healthy


def _part_status(name: str, record: processes.Process | None) -> PartStatus:
    if record is None:
        return PartStatus(name, "stopped", None)
    alive = processes.is_running(record)
    return PartStatus(name, "running" if alive else "dead", record.pid if alive else None)
