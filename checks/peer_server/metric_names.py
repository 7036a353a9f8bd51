"""The Prometheus metrics of vLLM and SGLang, read from their sources with `ast`."""

import ast
import re
from collections.abc import Iterator, Mapping

from specdecode_api.metrics import MetricType
from specdecode_api.peer_flags import Peer

FILES: Mapping[Peer, tuple[str, ...]] = {
    Peer.VLLM: ("vllm/v1/", "vllm/distributed/", "vllm/entrypoints/", "vllm/parser/"),
    Peer.SGLANG: (
        "sglang/srt/observability/",
        "sglang/srt/disaggregation/",
        "sglang/srt/entrypoints/",
        "sglang/srt/managers/",
        "sglang/srt/mem_cache/",
    ),
}
NAME = re.compile(r"(vllm|sglang):[a-z]\w*")
TOTAL = "_total"

Metrics = Mapping[str, MetricType | None]
"""Types by name as Prometheus exports it; None where the declaration does not have the type."""


def read_metrics(sources: Mapping[str, str]) -> Metrics:
    """Return the metrics whose names are literals in modules.

    Args:
        sources: text of modules by path.
    """
    found = dict[str, MetricType | None]()
    for text in sources.values():
        for name, kind in _names(ast.parse(text), None):
            exported = _exported(name, kind)
            found[exported] = found.get(exported) or kind
    untyped = {name for name, kind in found.items() if kind is None and name + TOTAL in found}
    return {name: kind for name, kind in found.items() if name not in untyped}


def _names(node: ast.AST, kind: MetricType | None) -> Iterator[tuple[str, MetricType | None]]:
    """Yield literals with the type that the innermost call or assignment around them names."""
    match node:
        case ast.Constant(value=str() as value) if NAME.fullmatch(value):
            yield value, kind
        case ast.Call():
            kind = _kind(ast.unparse(node.func)) or kind
        case ast.Assign(targets=[target]):
            kind = _kind(ast.unparse(target))
    for each in ast.iter_child_nodes(node):
        yield from _names(each, kind)


def _kind(text: str) -> MetricType | None:
    """Return the type in the name of a class or variable, such as `self._gauge_cls`."""
    word = text.rpartition(".")[2].lower()
    return next((kind for kind in MetricType if kind in word), None)


def _exported(name: str, kind: MetricType | None) -> str:
    """Add the suffix that the Prometheus client gives to names of counters."""
    is_bare = kind is MetricType.COUNTER and not name.endswith(TOTAL)
    return name + TOTAL if is_bare else name
