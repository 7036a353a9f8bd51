"""What an engine that serves does worse than it was told to: in one word and a sentence each."""

from collections.abc import Iterator

from specdecode_api.report import Degradation, Degraded
from specdecode_engine.graph_plan.report import Eager, GraphReport
from specdecode_engine.serve.service import Service

MIN_ROUNDS = 200
"""Rounds before a share of them says anything."""
MISSED_SHARE = 0.1


def degradations(service: Service) -> tuple[Degradation, ...]:
    """List what is worse than it should be, the worst first."""
    return tuple(_degradations(service))


def _degradations(service: Service) -> Iterator[Degradation]:
    keys, watch = service.keys, service.watch
    if keys is not None and keys.complaint:
        yield Degradation(
            reason=Degraded.API_KEYS_MISSING, message=f"every call is refused: {keys.complaint}"
        )
    if service.tables.latest_refusal:
        text = f"the old table stays: {service.tables.latest_refusal}"
        yield Degradation(reason=Degraded.TABLE_REFUSED, message=text)
    if watch is not None and watch.needs_restart:
        text = f"changed, but only a restart takes it up: {', '.join(watch.needs_restart)}"
        yield Degradation(reason=Degraded.NEEDS_RESTART, message=text)
    if why := service.facts.get("cpu_kernels_missing"):
        text = f"plain torch computes, several times slower than kernels would: {why}"
        yield Degradation(reason=Degraded.CPU_KERNELS_MISSING, message=text)
    if text := missed(service.engine.snapshot.graphs):
        yield Degradation(reason=Degraded.CAPTURED_PASSES_MISSED, message=text)


def missed(graphs: GraphReport) -> str:
    """Say that many rounds run slower than planned for want of a captured pass; "" if few do.

    Without the numbers, which change all the time: metrics have them.
    """
    reasons = (Eager.TOO_LARGE, Eager.REFUSED, Eager.UNPLANNED)
    found = [why for why in reasons if graphs.eager_rounds.get(why)]
    lacking = sum(graphs.eager_rounds[why] for why in found)
    rounds = graphs.captured_rounds + lacking
    if graphs.mode == "off" or rounds < MIN_ROUNDS or lacking < MISSED_SHARE * rounds:
        return ""
    refused = f"; {graphs.refused[0]}" if graphs.refused else ""
    return (
        f"more than {MISSED_SHARE:.0%} of the rounds ran without a captured pass "
        f"({', '.join(found)}){refused}; leave more memory to captured passes, or have fewer "
        "depths or smaller batches"
    )
