"""The functions of the C kernels for tensors of one type."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from specdecode_kernels.cpu.tuning import Tuning

_ADDRESS, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_SMALL: dict[str, list[type]] = {
    "rms_norm": [*[_ADDRESS, _COUNT] * 2, _NUMBER, _ADDRESS, _COUNT, _COUNT],
    "add_rms_norm": [*[_ADDRESS, _COUNT] * 3, _NUMBER, *[_ADDRESS] * 2, *[_COUNT] * 2],
    "apply_rope": [*[_ADDRESS, _COUNT, _COUNT] * 2, _ADDRESS, _ADDRESS, _COUNT, _COUNT],
    "silu_and_mul": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "gelu_tanh_and_mul": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "softcap": [_ADDRESS, _NUMBER, _ADDRESS, _COUNT],
    "store_kv": [*[_ADDRESS] * 3, *[_ADDRESS, _COUNT] * 2, *[_COUNT] * 3],
    "verify_chain": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "append_tokens": [
        *(_ADDRESS, _COUNT, *[_ADDRESS] * 4, *(_ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT)),
    ],
    "lay_out_rows": [
        *(_ADDRESS, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _COUNT),
        *(_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT),
    ],
}
_OF_TUNING: dict[str, list[type]] = {
    "set_tuning": [_ADDRESS],
    "release_pages": [_ADDRESS, _COUNT],
    "evict": [_ADDRESS, _COUNT],
}
_LARGE: dict[str, list[type]] = {
    "pack": [_ADDRESS, _ADDRESS],
    "pack_quantized": [*[_ADDRESS] * 5],
    "linear": [*[_ADDRESS] * 3, _COUNT, _ADDRESS, _COUNT],
    "map_heads": [_ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT],
    "add_low_rank": [_ADDRESS, _COUNT, _COUNT, *[_ADDRESS] * 2, _COUNT, _ADDRESS],
    "experts": [*[_ADDRESS] * 5, _COUNT, *[_ADDRESS] * 7],
    "decoder_layers": [_ADDRESS, _ADDRESS, _COUNT, *[_ADDRESS] * 4],
    "attend": [*[_ADDRESS] * 3, _COUNT, *[_ADDRESS] * 3, *[_COUNT] * 4, _ADDRESS],
    "gated_delta": [*[_ADDRESS] * 3, _COUNT, *[_ADDRESS] * 3],
    "keep_drafted": [*[_ADDRESS] * 4, _COUNT, _ADDRESS, _COUNT],
}
SIGNATURES = {**_SMALL, **_LARGE, **_OF_TUNING}
"""Argument types of every function in C."""


class Library:
    """The functions for tensors of one type, by their names in C.

    The small ones keep Python's lock: to give it up and get it back takes longer than they do.
    """

    rms_norm: Callable[..., None]
    add_rms_norm: Callable[..., None]
    apply_rope: Callable[..., None]
    silu_and_mul: Callable[..., None]
    gelu_tanh_and_mul: Callable[..., None]
    softcap: Callable[..., None]
    store_kv: Callable[..., None]
    verify_chain: Callable[..., None]
    append_tokens: Callable[..., None]
    lay_out_rows: Callable[..., None]
    pack: Callable[..., None]
    pack_quantized: Callable[..., None]
    linear: Callable[..., None]
    map_heads: Callable[..., None]
    add_low_rank: Callable[..., None]
    experts: Callable[..., None]
    attend: Callable[..., None]
    gated_delta: Callable[..., None]
    keep_drafted: Callable[..., None]
    decoder_layers: Callable[..., None]
    set_tuning: Callable[..., None]
    release_pages: Callable[..., None]
    evict: Callable[..., None]

    def __init__(self, file: Path, dtype: torch.dtype) -> None:
        self.file = file
        self.dtype = dtype
        self.tuning = Tuning()
        name = str(file)
        small, large = ctypes.PyDLL(name), ctypes.CDLL(name)
        self.most_rows: int = large.most_rows()
        self._use_amx = large.use_amx
        for loaded, functions in ((small, _SMALL), (large, _LARGE | _OF_TUNING)):
            for called, arguments in functions.items():
                function = getattr(loaded, called)
                function.argtypes, function.restype = arguments, None
                setattr(self, called, function)

    def use(self, tuning: Tuning) -> None:
        """Tune maps that begin from now on, and weights that are packed.

        Tiles have at most as many rows as this processor has registers for.
        """
        self.tuning = replace(tuning, rows=min(tuning.rows, self.most_rows))
        fields = self.tuning.in_c()
        self.set_tuning(ctypes.addressof(fields))

    def use_amx(self, *, is_wanted: bool) -> int:
        """Let Intel's AMX compute sums in the order blocks32 from now on, or multiply-adds.

        Rows that were packed before for one are not read by the other: nothing may run meanwhile.

        Returns:
            0 where it is as wanted; else why AMX is refused: an errno of the operating system, or a
            key of `amx.REFUSALS`.
        """
        return int(self._use_amx(int(is_wanted)))
