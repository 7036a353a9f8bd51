"""Launchers of the gated delta rule, and its arguments in C's form."""

import ctypes

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.recurrent import DeltaParams, DeltaRows, DeltaState
from specdecode_kernels.torch import gated_delta as reference

_ROW_NUMBERS = 8
"""Numbers of 32 bits that a row of a tree needs in C's workspace: ROW_NUMBERS of gated_delta.c."""


class _DeltaParams(ctypes.Structure):
    """`struct delta_params` of gated_delta.h."""

    _fields_ = (
        ("k_heads", ctypes.c_int64),
        ("v_heads", ctypes.c_int64),
        ("k_dim", ctypes.c_int64),
        ("v_dim", ctypes.c_int64),
        ("conv_width", ctypes.c_int64),
        ("rule", ctypes.c_int64),
        ("layers", ctypes.c_int64),
        ("conv", ctypes.c_void_p),
        ("decay", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("conv_bias", ctypes.c_void_p),
    )


class _DeltaState(ctypes.Structure):
    """`struct delta_state` of gated_delta.h."""

    _fields_ = (
        ("slots", ctypes.c_int64),
        ("drafted_slots", ctypes.c_int64),
        ("nodes", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        ("matrices", ctypes.c_void_p),
        ("drafted", ctypes.c_void_p),
        ("gates", ctypes.c_void_p),
    )


class _DeltaRows(ctypes.Structure):
    """`struct delta_rows` of gated_delta.h."""

    _fields_ = (
        ("batch", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("node_stride", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("ancestry", ctypes.c_void_p),
    )


class _DeltaInputs(ctypes.Structure):
    """`struct delta_inputs` of gated_delta.h."""

    _fields_ = (
        ("u", ctypes.c_void_p),
        ("gates", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("gates_stride", ctypes.c_int64),
    )


class CpuGatedDelta:
    """The gated delta rule of one model; keeps in C's form what all layers of a forward share."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._params: tuple[DeltaParams, _DeltaParams] | None = None
        self._state: tuple[DeltaState, _DeltaState] | None = None
        self._rows: tuple[DeltaRows, _DeltaRows] | None = None

    def gated_delta(
        self,
        u: Tensor,
        gates: Tensor,
        params: DeltaParams,
        state: DeltaState,
        layer: int,
        rows: DeltaRows,
    ) -> Tensor:
        """Launch on rows of the library's type and f32 matrices; torch computes otherwise."""
        if not self._takes(state, u):
            return reference.gated_delta(u, gates, params, state, layer, rows)
        u, gates = (x if x.stride(1) == 1 else x.contiguous() for x in (u, gates))
        shape, count = params.shape, u.shape[0]
        out = torch.empty(count, shape.v_heads, shape.v_dim, dtype=u.dtype)
        inputs = _DeltaInputs(u.data_ptr(), gates.data_ptr(), u.stride(0), gates.stride(0))
        workspace = None
        if rows.ancestry is not None:
            workspace = torch.empty(count * _ROW_NUMBERS, dtype=torch.int32)
        self._library.gated_delta(
            *self._in_c(params, state),
            ctypes.addressof(self._rows_in_c(rows)),
            layer,
            ctypes.addressof(inputs),
            out.data_ptr(),
            None if workspace is None else workspace.data_ptr(),
        )
        return out

    def keep_drafted(
        self,
        params: DeltaParams,
        state: DeltaState,
        slots: Tensor,
        path: Tensor | None,
        accepted: Tensor,
    ) -> None:
        """Launch for all layers at once; torch computes where `gated_delta` does."""
        if not self._takes(state, state.drafted):
            reference.keep_drafted(params, state, slots, path, accepted)
            return
        path = path if path is None or path.stride(1) == 1 else path.contiguous()
        slots, accepted = slots.contiguous(), accepted.contiguous()
        self._library.keep_drafted(
            *self._in_c(params, state),
            slots.data_ptr(),
            None if path is None else path.data_ptr(),
            0 if path is None else path.stride(0),
            accepted.data_ptr(),
            slots.shape[0],
        )

    def _takes(self, state: DeltaState, inputs: Tensor) -> bool:
        is_known = inputs.dtype == state.inputs.dtype == self._library.dtype
        return is_known and state.matrices.dtype == torch.float32

    def _in_c(self, params: DeltaParams, state: DeltaState) -> tuple[int, int]:
        """Return the addresses of both records in C's form."""
        if self._params is None or self._params[0] is not params:
            self._params = params, _params_in_c(params)
        if self._state is None or self._state[0] is not state:
            self._state = state, _state_in_c(state)
        return ctypes.addressof(self._params[1]), ctypes.addressof(self._state[1])

    def _rows_in_c(self, rows: DeltaRows) -> _DeltaRows:
        if self._rows is None or self._rows[0] is not rows:
            self._rows = rows, _rows_in_c(rows)
        return self._rows[1]


def _params_in_c(params: DeltaParams) -> _DeltaParams:
    addresses = (one.data_ptr() for one in (params.conv, params.decay, params.dt_bias))
    bias = None if params.conv_bias is None else params.conv_bias.data_ptr()
    return _DeltaParams(*params.shape, params.conv.shape[0], *addresses, bias)


def _state_in_c(state: DeltaState) -> _DeltaState:
    tensors = state.inputs, state.matrices, state.drafted, state.drafted_gates
    sizes = state.inputs.shape[1], *state.drafted.shape[1:3]
    return _DeltaState(*sizes, *(one.data_ptr() for one in tensors))


def _rows_in_c(rows: DeltaRows) -> _DeltaRows:
    strides = (0, 0) if rows.ancestry is None else rows.ancestry.stride()[:2]
    given = rows.slots, rows.cu_seqlens, rows.ancestry
    addresses = (None if one is None else one.data_ptr() for one in given)
    return _DeltaRows(rows.batch_size, rows.num_chunks, *strides, *addresses)
