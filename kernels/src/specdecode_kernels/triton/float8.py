"""float8 (e4m3, no infinity) by integer operations, for any GPU and for the interpreter.

Below compute capability 8.9 no instruction converts float8 and Triton refuses the type; for 8.9
Triton 3.6 emits a conversion to bfloat16 that only 9.0 has. Both directions are exact:
`decode_float8` for all 256 values, `encode_float8` rounds to nearest even as torch does.
"""

import torch
import triton
import triton.language as tl

HOPPER = (9, 0)
NAN_BITS = tl.constexpr(0x7F)
MAX_FLOAT8 = tl.constexpr(448.0)
BIAS_FACTOR = tl.constexpr(2.0**120)  # the exponent's bias is 7 in float8 and 127 in float32
SUBNORMAL_GRID = tl.constexpr(2.0**14)  # float32 numbers from here on are 2**-9 apart
SMALLEST_NORMAL = tl.constexpr(2.0**-6)


@triton.jit
def decode_float8(bits):
    """Convert bytes of float8 to float32."""
    bits = bits.to(tl.int32)
    # Exponent and mantissa lie side by side in both types. The product corrects the bias, and is
    # exact for subnormal numbers too.
    moved = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    value = moved.to(tl.float32, bitcast=True) * BIAS_FACTOR
    return tl.where((bits & 0x7F) == NAN_BITS, float("nan"), value)


@triton.jit
def encode_float8(x):
    """Convert float32 to bytes of float8; what is out of range saturates, NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(x), MAX_FLOAT8)
    bits = magnitude.to(tl.int32, bitcast=True)
    # Half a unit in the last place that is kept, less one where the kept part is even.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = (magnitude + SUBNORMAL_GRID).to(tl.int32, bitcast=True) & 0xF
    kept = tl.where(magnitude < SMALLEST_NORMAL, subnormal, normal)
    kept = tl.where(x == x, kept, NAN_BITS)
    return (sign | kept).to(tl.uint8)


def float8_is_native(device: torch.device) -> bool:
    """Whether kernels read float8 by instructions of the device; interpreted ones do not."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER
