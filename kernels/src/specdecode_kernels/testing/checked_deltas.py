"""Checks of the arguments of the gated delta rule; see `checked`."""

import torch
from torch import Tensor

from specdecode_kernels.recurrent import DeltaParams, DeltaRows, DeltaState
from specdecode_kernels.torch.elementwise import accumulation_dtype


def check_gated_delta(
    u: Tensor, gates: Tensor, params: DeltaParams, state: DeltaState, layer: int, rows: DeltaRows
) -> None:
    _check_records("gated_delta", params, state)
    if not 0 <= layer < len(params.conv):
        raise ValueError(f"gated_delta: there is no layer {layer} of {len(params.conv)}")
    count, shape = len(rows.slots), params.shape
    wanted = (count, shape.channels), (count, shape.gates)
    if (tuple(u.shape), tuple(gates.shape)) != wanted:
        raise ValueError(
            f"gated_delta: u {list(u.shape)} and gates {list(gates.shape)} must be "
            f"{list(wanted[0])} and {list(wanted[1])}, a row for each of slots"
        )
    if not u.dtype == gates.dtype == state.inputs.dtype:
        raise ValueError(
            f"gated_delta: u {u.dtype} and gates {gates.dtype} must be of the states' inputs, "
            f"{state.inputs.dtype}"
        )
    _check_rows(rows, state)


def check_keep_drafted(
    params: DeltaParams, state: DeltaState, slots: Tensor, path: Tensor | None, accepted: Tensor
) -> None:
    _check_records("keep_drafted", params, state)
    if slots.dim() != 1 or accepted.shape != slots.shape:
        raise ValueError(
            f"keep_drafted: slots {list(slots.shape)} and accepted {list(accepted.shape)} must "
            "both be [batch]"
        )
    most = state.drafted.shape[2] if path is None else path.shape[-1] - 1
    if path is not None and (path.dim() != 2 or len(path) != len(slots)):
        raise ValueError(f"keep_drafted: path {list(path.shape)} must be [{len(slots)}, steps]")
    if any(each.dtype != torch.int64 for each in (slots, accepted) if each is not None):
        raise ValueError("keep_drafted: slots and accepted must be int64")
    if accepted.device.type == "cpu" and bool((accepted > most).any()):
        raise ValueError(
            f"keep_drafted: {accepted.max()} nodes were accepted of {most} that a request may have"
        )


def _check_records(op: str, params: DeltaParams, state: DeltaState) -> None:
    shape, layers = params.shape, len(params.conv)
    if shape.v_heads % shape.k_heads:
        raise ValueError(f"{op}: {shape.v_heads} v heads cannot share {shape.k_heads} k heads")
    slots, (drafted_slots, nodes) = state.inputs.shape[1], state.drafted.shape[1:3]
    wanted = {
        "conv": (params.conv, (layers, shape.conv_width, shape.channels)),
        "decay": (params.decay, (layers, shape.v_heads)),
        "dt_bias": (params.dt_bias, (layers, shape.v_heads)),
        "inputs": (state.inputs, (layers, slots, shape.conv_width - 1, shape.channels)),
        "matrices": (state.matrices, (layers, slots, shape.v_heads, shape.k_dim, shape.v_dim)),
        "drafted": (state.drafted, (layers, drafted_slots, nodes, shape.channels)),
        "drafted_gates": (state.drafted_gates, (layers, drafted_slots, nodes, shape.gates)),
    }
    if params.conv_bias is not None:
        wanted["conv_bias"] = params.conv_bias, (layers, shape.channels)
    for name, (tensor, sizes) in wanted.items():
        if tuple(tensor.shape) != sizes or not tensor.is_contiguous():
            raise ValueError(f"{op}: {name} {list(tensor.shape)} must be {list(sizes)}, contiguous")
    wide = accumulation_dtype(state.inputs.dtype)
    for name in wanted.keys() & {"conv", "decay", "dt_bias", "matrices", "conv_bias"}:
        if wanted[name][0].dtype != wide:
            raise ValueError(f"{op}: {name} {wanted[name][0].dtype} must be {wide}")


def _check_rows(rows: DeltaRows, state: DeltaState) -> None:
    starts = rows.cu_seqlens
    if starts.shape != (rows.batch_size + 1,) or not 0 <= rows.num_chunks <= rows.batch_size:
        raise ValueError(
            f"gated_delta: cu_seqlens {list(starts.shape)} must be one for each of "
            f"{rows.batch_size} requests and the end, {rows.num_chunks} of them chunks"
        )
    for name in ("slots", "cu_seqlens"):
        tensor = getattr(rows, name)
        if tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(f"gated_delta: {name} {tensor.dtype} must be int64, contiguous")
    marks = rows.ancestry
    if marks is not None:
        fits = marks.dim() == 3 and len(marks) == rows.batch_size and marks.dtype == torch.bool
        if rows.num_chunks or not fits or marks.stride(2) != 1:
            raise ValueError(
                f"gated_delta: ancestry {list(marks.shape)} {marks.dtype} must be "
                f"[{rows.batch_size}, nodes, nodes] bool, without chunks"
            )
    if starts.device.type == "cpu":
        _check_counts(rows, state)


def _check_counts(rows: DeltaRows, state: DeltaState) -> None:
    counts = rows.cu_seqlens.diff().tolist()
    if min(counts, default=0) < 0 or sum(counts) != len(rows.slots):
        raise ValueError(f"gated_delta: requests of {counts} rows are not {len(rows.slots)} rows")
    most = max(counts[rows.num_chunks :], default=0)
    room = state.drafted.shape[2] + 1
    if most > room or (rows.ancestry is not None and most > rows.ancestry.shape[1]):
        raise ValueError(f"gated_delta: a draft of {most} nodes has room for {room}")
