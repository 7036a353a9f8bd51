"""Metrics of captured passes: what is there per depth, and how many rounds ran without."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from specdecode_api.series import core
from specdecode_engine.graph_plan.report import GraphReport
from specdecode_engine.metrics.families import filled, single


def collect_graphs(report: GraphReport) -> Iterator[Metric]:
    """Yield a gauge per fact of a depth, and the rounds with and without captured passes."""
    tiers = [((str(tier.num_steps),), tier) for tier in report.tiers]
    yield filled(core.GRAPH_BATCH_SIZES, ((at, len(tier.batch_sizes)) for at, tier in tiers))
    yield filled(core.GRAPH_BYTES, ((at, tier.num_bytes) for at, tier in tiers))
    yield filled(core.GRAPH_CAPTURE_SECONDS, ((at, tier.seconds) for at, tier in tiers))
    yield single(core.GRAPH_SHARED_BYTES, report.shared_bytes)
    yield single(core.CAPTURED_ROUNDS, report.captured_rounds)
    eager = report.eager_rounds.items()
    yield filled(core.EAGER_ROUNDS, (((reason,), rounds) for reason, rounds in eager))
