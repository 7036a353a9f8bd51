"""The boot file: everything an engine needs to start, with or without Kubernetes.

JSON, written by the operator or by hand. `speculation` has the rules that span fields.
"""

from specdecode_api.boot.adapters import AdaptersBoot
from specdecode_api.boot.engine import (
    AttentionBackendName,
    EngineBoot,
    GraphMode,
    GraphsBoot,
    MemoryBoot,
    ModelBoot,
    ModelImplementation,
    Quantization,
    SchedulingBoot,
    SumOrderName,
)
from specdecode_api.boot.ngram import NgramBoot
from specdecode_api.boot.parallelism import ParallelismBoot
from specdecode_api.boot.server import ReasoningParserName, ServerBoot, ToolParserName
from specdecode_api.boot.speculation import SpeculationBoot
from specdecode_api.table import TableEntry

__all__ = [
    "AdaptersBoot",
    "AttentionBackendName",
    "EngineBoot",
    "GraphMode",
    "GraphsBoot",
    "MemoryBoot",
    "ModelBoot",
    "ModelImplementation",
    "NgramBoot",
    "ParallelismBoot",
    "Quantization",
    "ReasoningParserName",
    "SchedulingBoot",
    "ServerBoot",
    "SpeculationBoot",
    "SumOrderName",
    "TableEntry",
    "ToolParserName",
]
