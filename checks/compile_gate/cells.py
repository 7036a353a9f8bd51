"""The matrix of the gate: every op, and attention for each forward, type, head and capability.

A cell of attention covers all group sizes (query heads of a kv head) that get the same tile, since
the kernel takes the group size at run time and differs by tile alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product

import torch

from specdecode_kernels import (
    FLOAT8,
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    AttentionParams,
    DeltaShape,
    Precision,
    RoutingConfig,
)
from specdecode_kernels.choice import heads_unsupported
from specdecode_kernels.mixture import GateKind
from specdecode_kernels.testing import Shape, calls
from specdecode_kernels.triton.backend import tile_for

CAPABILITIES = (80, 86, 89, 90, 100, 120)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DIMS = (64, 128, 256, 80, 96, 512)  # the most used first
FLOAT8_DIMS: dict[torch.dtype, tuple[int, ...]] = {
    torch.bfloat16: (64, 128),
    torch.float16: (),
    torch.float32: (),
}
"""Head dimensions compiled over a float8 cache, by the queries' type."""
LATENT_KINDS = (
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, FLOAT8),
)
LATENT_DIM, LATENT_V_DIM = 576, 512
"""Heads of latent attention, by types of queries and cache; as in DeepSeek-V3."""
MAX_GROUP = 16
FORWARDS = {
    "decode": Shape(qo_lens=(1, 1)),
    "verify": Shape(qo_lens=(8, 8), longest=40),
    "tree": Shape(qo_lens=(8, 8), longest=40, tree_rows=8),
    "extend": Shape(qo_lens=(1, 128), longest=140),
}
FEATURES = {
    64: ("window sinks",),
    128: ("window softcap", "window", "chunk"),
    256: ("window softcap",),
}
"""What bfloat16 cells have besides, by head dimension: as gpt-oss, Gemma 2, Mistral and Llama 4."""
PAGE1_FORWARDS = ("decode page1", "tree page1")
"""Over pages of one token, in bfloat16 at head dimension 128."""
FEATURE_FORWARDS = ("decode", "tree", "extend")  # a verified chain has the kernel of an extend
EXPERTS: dict[str, tuple[GateKind, torch.dtype]] = {
    "experts swigluoai": ("swigluoai", torch.bfloat16),
    "experts gelu": ("gelu", torch.float16),
    "experts gelu_tanh": ("gelu_tanh", torch.float32),
}
"""Mixtures besides that of the op's own call, all with biases."""
ROUTERS: dict[str, tuple[int, RoutingConfig]] = {
    "route_experts softmax_of_top_k": (32, RoutingConfig(top_k=4, scores="softmax_of_top_k")),
    "route_experts sigmoid_of_top_k": (128, RoutingConfig(top_k=1, scores="sigmoid_of_top_k")),
    "route_experts sparsemixer": (16, RoutingConfig(top_k=2, scores="sparsemixer", jitter=0.01)),
    "route_experts groups": (
        256,
        RoutingConfig(top_k=8, scores="sigmoid", is_normalized=True, num_groups=8, top_groups=4),
    ),
}
"""Kinds of routers besides that of the op's own call, with numbers of experts."""
FLOAT8_WEIGHT, GROUPED_FLOAT8 = Precision("float8_e4m3fn"), Precision("float8_e4m3fn", 64)
GROUPED_INT8 = Precision("int8", 64)


@dataclass(frozen=True, slots=True)
class QuantizedCase:
    """Quantized weights, and the rows that they map."""

    precision: Precision
    dtype: torch.dtype = torch.bfloat16
    rows: int = 3  # of a linear map
    block_rows: int = 0  # in whole blocks of a prompt
    kind: GateKind = "silu"  # of a mixture, with biases if it is another


LINEAR = {
    "linear int8": QuantizedCase(INT8),
    "linear int8 groups": QuantizedCase(GROUPED_INT8),
    "linear int8 zeros": QuantizedCase(replace(INT8, has_zeros=True)),
    "linear int8 zeros in groups": QuantizedCase(replace(GROUPED_INT8, has_zeros=True)),
    "linear int4 zeros": QuantizedCase(replace(INT4, has_zeros=True)),
    "linear float8": QuantizedCase(FLOAT8_WEIGHT),
    "linear float8 some rows": QuantizedCase(FLOAT8_WEIGHT, rows=33),
    "linear float8 groups": QuantizedCase(GROUPED_FLOAT8),
    "linear mxfp4": QuantizedCase(MXFP4),
    "linear mxfp4 some rows": QuantizedCase(MXFP4, rows=33),
    "linear mxfp4 many rows": QuantizedCase(MXFP4, rows=0, block_rows=64),
    "linear mxfp4 float16": QuantizedCase(MXFP4, torch.float16),
    "linear nvfp4": QuantizedCase(NVFP4),
    "linear nvfp4 some rows": QuantizedCase(NVFP4, rows=33),
    "linear nvfp4 many rows": QuantizedCase(NVFP4, rows=0, block_rows=64),
}
"""Forms of weights besides that of the op's own call."""
QUANTIZED_EXPERTS = {
    "experts int8": QuantizedCase(INT8),
    "experts int8 groups": QuantizedCase(GROUPED_INT8),
    "experts int8 zeros": QuantizedCase(replace(INT8, has_zeros=True)),
    "experts int8 zeros in groups": QuantizedCase(replace(GROUPED_INT8, has_zeros=True)),
    "experts int4": QuantizedCase(INT4),
    "experts float8": QuantizedCase(FLOAT8_WEIGHT),
    "experts float8 groups": QuantizedCase(GROUPED_FLOAT8),
    "experts mxfp4": QuantizedCase(MXFP4, kind="swigluoai"),
    "experts mxfp4 float16": QuantizedCase(MXFP4, torch.float16),
    "experts nvfp4": QuantizedCase(NVFP4),
}
DELTA: dict[str, tuple[DeltaShape, torch.dtype, bool]] = {
    "gated_delta chains": (DeltaShape(16, 32, 128, 128, 4), torch.bfloat16, False),
    "gated_delta trees": (DeltaShape(16, 32, 128, 128, 4), torch.bfloat16, True),
    "gated_delta float16": (DeltaShape(16, 16, 128, 128, 4), torch.float16, False),
    "gated_delta float32": (DeltaShape(16, 32, 128, 128, 4), torch.float32, True),
    "gated_delta wide heads": (DeltaShape(8, 16, 256, 256, 4), torch.bfloat16, True),
    "gated_delta convolution": (DeltaShape.of_convolution(2048, 3), torch.bfloat16, True),
}
"""Shapes of layers besides that of the op's own call, and whether drafts are trees: the first are
those of Qwen3-Next and Qwen3.5."""
KEEP = {f"keep_drafted {name.removeprefix('gated_delta ')}": name for name in DELTA}
"""Drafts of the same layers, kept."""
SAMPLING: dict[str, tuple[bool, bool] | None] = {
    "sample greedy": None,
    "sample noise": (False, False),
    "sample filters": (True, False),
    "sample top_k top_p": (True, True),
}
"""is_filtered and has_top_k_and_top_p of batches of `SAMPLED_VOCAB` logits: the op's own call has
few, so that its programs are small."""
SAMPLED_VOCAB = 128_256
DEPENDENT = {
    f"{op} dependent": op
    for op in ("add_rms_norm", "apply_rope", "rope_and_store_kv", "silu_and_mul", "store_kv")
}
"""Ops that are compiled once more for dependent launches, on devices that have these."""
OTHER_CASES = (
    *("store_kv float8", "rope_and_store_kv float8", "merge_splits", "add_rms_norm parts"),
    *(*EXPERTS, *ROUTERS, *LINEAR, *QUANTIZED_EXPERTS, *SAMPLING, *DELTA, *KEEP),
)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One compilation. What is not of attention has only an op and a capability."""

    op: str
    capability: int
    forward: str = "-"  # and features that its layers have
    dtype: str = "-"
    kv_dtype: str = "-"
    dim: int = 0
    groups: str = "-"  # first and last that get this tile

    @property
    def group(self) -> int:
        return int(self.groups.split("-")[0])

    @property
    def is_attention(self) -> bool:
        return self.op == "attend"

    @property
    def refused(self) -> str | None:
        """Why the engine does not choose the kernel here."""
        if not self.is_attention:
            return None
        dim = _tile_dim(self.forward, self.dim)
        return heads_unsupported(dtype_of(self.dtype), dim, dtype_of(self.kv_dtype))

    def shape(self) -> Shape:
        """Return the shape of a call of attention that compiles this cell."""
        return replace(
            shape_of(self.forward),
            shared=self.group,
            dim=self.dim,
            dtype=dtype_of(self.dtype),
            pool_dtype=dtype_of(self.kv_dtype),
        )


def shape_of(forward: str) -> Shape:
    """Return a call's shape with the features of its layers, and small heads."""
    name, *features = forward.split()
    params = AttentionParams(
        logit_softcap=50.0 if "softcap" in features else None,
        sliding_window=4096 if "window" in features else None,
        attention_chunk_size=8192 if "chunk" in features else None,
    )
    page_size = 1 if "page1" in features else 16
    if "latent" in features:
        return replace(FORWARDS[name], page_size=16, kv_heads=1, v_dim=LATENT_V_DIM, is_latent=True)
    has_sinks = "sinks" in features
    return replace(FORWARDS[name], params=params, page_size=page_size, has_sinks=has_sinks)


def all_cells() -> list[Cell]:
    """Return the whole matrix, the set of CI first, then the most used types."""
    kinds = [
        *((dtype, dtype, dim) for dtype, dim in product(DTYPES, DIMS)),
        *((dtype, FLOAT8, dim) for dtype in DTYPES for dim in FLOAT8_DIMS[dtype]),
        *((dtype, kv_dtype, LATENT_DIM) for dtype, kv_dtype in LATENT_KINDS),
    ]
    attention = [
        Cell("attend", capability, forward, name_of(dtype), name_of(kv_dtype), dim, groups)
        for dtype, kv_dtype, dim in kinds
        for forward in _forwards(dtype, kv_dtype, dim)
        for groups in _groups_by_tile(forward, dtype, kv_dtype, dim)
        for capability in CAPABILITIES
    ]
    ops = [op for op in calls(torch.device("cpu")) if op != "attend"]
    others = [Cell(op, capability) for op in (*ops, *OTHER_CASES) for capability in CAPABILITIES]
    others += [Cell(op, capability) for op in DEPENDENT for capability in CAPABILITIES[-3:]]
    return sorted(others + attention, key=lambda cell: not _is_named(cell))


def named_cells() -> list[Cell]:
    """Return the cells that CI compiles; a test limits their number."""
    return [cell for cell in all_cells() if _is_named(cell)]


def _is_named(cell: Cell) -> bool:
    if not cell.is_attention:
        return cell.capability == 90
    first, last = (int(group) for group in cell.groups.split("-"))
    if not first <= 4 <= last or cell.refused:
        return False
    kind = cell.dtype, cell.kv_dtype
    if kind == ("bfloat16", "bfloat16"):
        if cell.forward not in FORWARDS:
            return cell.capability == 90 and cell.dim in (128, LATENT_DIM)
        return cell.dim in (64, 128)
    if kind == ("float16", "float16"):
        return cell.dim in (64, 128) and cell.capability in (80, 90)
    if kind == ("bfloat16", name_of(FLOAT8)):
        return cell.dim == 128 and cell.forward in ("decode", "tree")
    return kind == ("float32", "float32") and cell.dim == 128 and cell.capability in (80, 90)


def _forwards(dtype: torch.dtype, kv_dtype: torch.dtype, dim: int) -> Iterator[str]:
    if dim == LATENT_DIM:
        yield from (f"{forward} latent" for forward in FORWARDS)
        return
    yield from FORWARDS
    if dtype == kv_dtype == torch.bfloat16 and dim in FEATURES:
        yield from map(" ".join, product(FEATURE_FORWARDS, FEATURES[dim]))
    if (dtype, kv_dtype, dim) == (torch.bfloat16, torch.bfloat16, 128):
        yield from PAGE1_FORWARDS


def _groups_by_tile(
    forward: str, dtype: torch.dtype, kv_dtype: torch.dtype, dim: int
) -> Iterator[str]:
    shape = shape_of(forward)
    tiles = {
        group: tile_for(
            shape.params,
            max(shape.qo_lens) * group,
            _tile_dim(forward, dim),
            dtype.itemsize,
            page_size=shape.page_size,
            is_float8=kv_dtype == FLOAT8,
            is_tree=shape.tree_rows > 0,
        )
        for group in range(1, MAX_GROUP + 1)
    }
    for _, members in groupby(tiles, key=tiles.__getitem__):
        same = list(members)
        yield f"{same[0]}-{same[-1]}"


def _tile_dim(forward: str, dim: int) -> int:
    """Return the entries of the widest tile: of latents, what keys have besides has its own."""
    return shape_of(forward).v_dim or dim


def name_of(dtype: torch.dtype) -> str:
    """Return a type's name without its module."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the type of a name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
