"""Memory that the factors of a LoRA adapter take in an engine on a CPU."""

from collections.abc import Mapping

from specdecode_engine.model.checkpoint.adapters.adapter import Factors
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_kernels.packed_weights import BLOCK, PackedLayout

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Maps that a model computes as one; see `adapted_llama`."""
BYTES = 4  # of a number that is not packed
FLOAT32 = PackedLayout(0)


def packed_bytes(factors: Mapping[str, Factors], base: AdapterBase) -> int:
    """Return the bytes of an adapter's factors in float32 as they are packed."""
    groups: dict[str, list[str]] = {}
    for module in base.shapes:
        groups.setdefault(_joined_name(module), []).append(module)
    return sum(_bytes_of(modules, factors, base) for modules in groups.values())


def _joined_name(module: str) -> str:
    parent, _, leaf = module.rpartition(".")
    return next((f"{parent}.{'/'.join(maps)}" for maps in JOINED if leaf in maps), module)


def _bytes_of(modules: list[str], factors: Mapping[str, Factors], base: AdapterBase) -> int:
    rank = sum(factors[one].rank for one in modules if one in factors)
    if not rank:
        return 0
    outputs, inputs = sum(base.shapes[one][0] for one in modules), base.shapes[modules[0]][1]
    if modules == [base.embedding]:  # its A is looked up by token, and not packed
        return BYTES * rank * outputs + _packed(inputs, rank)
    return _packed(rank, inputs) + _packed(outputs, rank)


def _packed(outputs: int, inputs: int) -> int:
    return -(-outputs // BLOCK) * FLOAT32.block_bytes(inputs)
