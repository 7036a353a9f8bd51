"""The ops of the engine, and the backends that implement them: torch, triton, cpu (C), flashinfer.

Here live tensors and arithmetic, nothing above them: no model, no request, no configuration. An
engine chooses a `Backend` when it is built and calls its functions; `torch/` is the reference that
every faster kernel is compared with. On a CPU a row has the same bits whatever rows it is computed
with, because text must not depend on the batch, on how a prompt is cut or on speculation: the
kernels in C sum in one order, and `torch.by_row` describes how the reference does it.
"""

from specdecode_kernels.backend import META, TORCH, Backend, GraphSupport, OpCall
from specdecode_kernels.choice import Choice, choose_backend
from specdecode_kernels.layer_parts import FusedKV, FusedLayer, FusedRows, FusibleLayer
from specdecode_kernels.low_rank import (
    ActiveRows,
    LayerLowRank,
    LowRankFactors,
    LowRankMaps,
    LowRankRows,
    PackedLowRank,
)
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    FLOAT8,
    AttentionMetadata,
    AttentionParams,
    CausalBounds,
    DraftedNodes,
    KvScale,
    LayerKV,
    PenaltyParamsBatch,
    RowSpec,
    SamplingParamsBatch,
    TreeKV,
)
from specdecode_kernels.mixture import (
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    RoutingConfig,
)
from specdecode_kernels.packed_weights import AnyWeight, PackedWeight, SumOrder
from specdecode_kernels.quantize import INT4, INT8, MXFP4, NVFP4, quantize
from specdecode_kernels.recurrent import (
    DeltaParams,
    DeltaRows,
    DeltaShape,
    DeltaState,
    RecurrentRule,
)
from specdecode_kernels.row_paths import PROMPT_BLOCK, RowPaths, RowSplit, tokens_in_blocks
from specdecode_kernels.weights import Precision, QuantizedTensor

__all__ = [
    "DEFAULT_ATTENTION",
    "FLOAT8",
    "INT4",
    "INT8",
    "META",
    "MXFP4",
    "NVFP4",
    "PROMPT_BLOCK",
    "TORCH",
    "ActiveRows",
    "AnyWeight",
    "AttentionMetadata",
    "AttentionParams",
    "Backend",
    "CausalBounds",
    "Choice",
    "DeltaParams",
    "DeltaRows",
    "DeltaShape",
    "DeltaState",
    "DraftedNodes",
    "ExpertRouting",
    "ExpertWeights",
    "FusedKV",
    "FusedLayer",
    "FusedRows",
    "FusibleLayer",
    "GatedActivation",
    "GraphSupport",
    "KvScale",
    "LayerKV",
    "LayerLowRank",
    "LowRankFactors",
    "LowRankMaps",
    "LowRankRows",
    "OpCall",
    "PackedLowRank",
    "PackedWeight",
    "PenaltyParamsBatch",
    "Precision",
    "QuantizedTensor",
    "RecurrentRule",
    "RoutingConfig",
    "RowPaths",
    "RowSpec",
    "RowSplit",
    "SamplingParamsBatch",
    "SumOrder",
    "TreeKV",
    "choose_backend",
    "quantize",
    "tokens_in_blocks",
]
