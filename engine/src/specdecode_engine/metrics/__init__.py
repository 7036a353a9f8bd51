"""What the engine tells Prometheus: the core's totals and the server's latencies."""

from specdecode_engine.metrics.latencies import EngineMetrics, Stopwatch
from specdecode_engine.metrics.snapshot import CoreSnapshot, RangeSnapshot

__all__ = ["CoreSnapshot", "EngineMetrics", "RangeSnapshot", "Stopwatch"]
