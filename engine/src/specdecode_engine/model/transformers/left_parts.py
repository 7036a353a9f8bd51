"""Which parts of a network stay those of transformers, and a message where more do than expected.

A release of transformers that renames an argument or moves an op would otherwise leave its own
layers in place silently: the same texts, slower.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cache

from torch import nn

from specdecode_engine.model.transformers.row_layer import RowDecoderLayer, part_names

ATTENTION, LAYERS = "attention", "layers"
_OF_ATTENTION = (
    "bitnet", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "gemma4_text", "glm", "glm4",
    "gpt_oss", "helium", "olmo", "phi3", "stablelm",
)  # fmt: skip
_OF_LAYERS = ("exaone4", "granite", "lfm2", "minicpm3", "olmo2", "olmo3", "qwen3_5_text")
EXPECTED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_OF_ATTENTION, frozenset({ATTENTION})),
    **dict.fromkeys(_OF_LAYERS, frozenset({LAYERS})),
}
"""What is left of model types under the releases of transformers that pyproject.toml allows; of
all others nothing. Their layers scale or norm what they add, or attend in a way of their own."""

log = logging.getLogger(__name__)


def parts_left(layers: Iterable[nn.Module]) -> frozenset[str]:
    """Return what is computed by modules of transformers.

    `ATTENTION`: attention modules of some layers; `LAYERS`: layers whose parts all are ours.
    """
    left = set()
    for layer in layers:
        if any("paged_attention" in vars(module) for module in layer.modules()):
            left.add(ATTENTION)
        if type(layer) is not RowDecoderLayer and part_names(layer) is not None:
            left.add(LAYERS)
    return frozenset(left)


def report_left(model_type: str, layers: Iterable[nn.Module]) -> None:
    """Log, once for each type, that more is left to transformers than expected."""
    surprising = parts_left(layers) - EXPECTED.get(model_type, frozenset())
    if surprising:
        _warn(model_type, " and ".join(sorted(surprising)))


@cache
def _warn(model_type: str, left: str) -> None:
    from transformers import __version__

    log.warning(
        "model type %s: %s of transformers %s are not replaced by faster ones, because they are "
        "called or compute otherwise than those that were tested; texts are the same. Where the "
        "type is listed as supported, install a release that specdecode-engine allows",
        model_type,
        left,
        __version__,
    )
