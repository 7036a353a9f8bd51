"""Memory that the factors of a LoRA adapter take in an engine on a CPU."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_kernels.low_rank import LANES
from specdecode_kernels.packed_weights import BLOCK, PackedLayout

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Maps that a model computes as one; see `adapted_llama`."""
BYTES = 4  # of a number
BLOCK_BYTES = 24  # that describe a block of outputs; see `PackedLowRank`
FLOAT32 = PackedLayout(0)


class HasRank(Protocol):
    """Factors of one linear map, or where they are stored."""

    @property
    def rank(self) -> int:
        """The number of rows of A."""


class _OfRank(NamedTuple):
    rank: int


def slot_bytes(rank: int, base: AdapterBase) -> int:
    """Return the bytes of an adapter of all linear maps, with embedding and head."""
    return packed_bytes(dict.fromkeys(base.shapes, _OfRank(rank)), base)


def packed_bytes(factors: Mapping[str, HasRank], base: AdapterBase) -> int:
    """Return the bytes of an adapter's factors in float32 as they are packed.

    Numbers of a factor that are zero for a whole block of outputs may take less.
    """
    groups: dict[str, list[str]] = {}
    for module in base.shapes:
        groups.setdefault(_joined_name(module), []).append(module)
    return sum(_bytes_of(modules, factors, base) for modules in groups.values())


def _joined_name(module: str) -> str:
    parent, _, leaf = module.rpartition(".")
    return next((f"{parent}.{'/'.join(maps)}" for maps in JOINED if leaf in maps), module)


def _bytes_of(modules: Sequence[str], factors: Mapping[str, HasRank], base: AdapterBase) -> int:
    ranks = [factors[one].rank if one in factors else 0 for one in modules]
    if not any(ranks):
        return 0
    outputs, inputs = [base.shapes[one][0] for one in modules], base.shapes[modules[0]][1]
    if modules == [base.embedding]:  # its A is looked up by token, and its B is a linear map
        blocks = -(-inputs // BLOCK)
        return BYTES * ranks[0] * outputs[0] + blocks * FLOAT32.block_bytes(ranks[0])
    of_a = BYTES * -(-sum(ranks) // LANES) * LANES * inputs
    counts = _ranks_of_blocks(outputs, ranks)
    return of_a + BYTES * BLOCK * sum(counts) + BLOCK_BYTES * len(counts)


def _ranks_of_blocks(outputs: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """Return how many ranks each block of outputs of joined maps has factors for."""
    owners = [at for at, count in enumerate(outputs) for _ in range(count)]
    found = []
    for first in range(0, len(owners), BLOCK):
        own = [at for at in sorted({*owners[first : first + BLOCK]}) if ranks[at]]
        found.append(sum(ranks[own[0] : own[-1] + 1]) if own else 0)
    return found
