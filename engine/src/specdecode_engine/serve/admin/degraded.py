"""Degradations of an engine that serves: a reason and a message for each."""

from collections.abc import Iterator

from specdecode_api.report import Degradation, Degraded
from specdecode_engine.graphs.plan import Eager, GraphReport
from specdecode_engine.serve.service import Service

MIN_STEPS = 200
"""Fewer decode steps than this give no meaningful share."""
MISSED_SHARE = 0.1


def degradations(service: Service) -> tuple[Degradation, ...]:
    """List the degradations, the worst first."""
    return tuple(_degradations(service))


def _degradations(service: Service) -> Iterator[Degradation]:
    keys, watch = service.keys, service.watch
    if keys is not None and keys.error:
        yield Degradation(
            reason=Degraded.API_KEYS_MISSING, message=f"every request is refused: {keys.error}"
        )
    if service.tables.latest_refusal:
        text = f"the old table stays in force: {service.tables.latest_refusal}"
        yield Degradation(reason=Degraded.TABLE_REFUSED, message=text)
    if watch is not None and watch.needs_restart:
        text = f"changed, and requires a restart: {', '.join(watch.needs_restart)}"
        yield Degradation(reason=Degraded.NEEDS_RESTART, message=text)
    if reason := service.facts.get("cpu_kernels_missing"):
        text = f"torch is used instead of the C kernels and is several times slower: {reason}"
        yield Degradation(reason=Degraded.CPU_KERNELS_MISSING, message=text)
    if text := missed_graphs(service.engine.snapshot.graphs):
        yield Degradation(reason=Degraded.CUDA_GRAPHS_MISSED, message=text)


def missed_graphs(graphs: GraphReport) -> str:
    """Return a message if many decode steps ran without a planned CUDA graph, else "".

    The message has no counts, because they change with every step; metrics report them.
    """
    if graphs.failure:
        return f"forwards run eagerly, slower than with CUDA graphs: {graphs.failure}"
    reasons = (Eager.TOO_LARGE, Eager.REFUSED, Eager.UNPLANNED, Eager.PENDING)
    found = [why for why in reasons if graphs.eager_steps.get(why)]
    eager = sum(graphs.eager_steps[why] for why in found)
    steps = graphs.graph_steps + eager
    if graphs.mode == "off" or steps < MIN_STEPS or eager < MISSED_SHARE * steps:
        return ""
    missing = (*graphs.refused, *graphs.pending)[:1]
    return (
        f"more than {MISSED_SHARE:.0%} of the decode steps ran without CUDA graphs "
        f"({'; '.join((', '.join(found), *missing))}); raise graphs.max_bytes or "
        "graphs.max_seconds, or use fewer num_steps or smaller batches"
    )
