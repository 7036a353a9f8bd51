"""The hash of `torch.sampling`, in the 32-bit arithmetic that it is written for.

Integers agree to the bit. The two logarithms agree to a unit or two in the last place: the device
has its library for them (Triton's own `log` is too coarse near 1, where large noise comes from),
the interpreter computes them in float64.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from specdecode_kernels.triton.likelihood import of_request

_GOLDEN = tl.constexpr(0x9E3779B9)
_TO_UNIT = tl.constexpr(2.0**-32)
_LARGEST_UNIFORM = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def _mix(value):
    value = value ^ (value >> 16)
    value = value * 0x21F0AAAD
    value = value ^ (value >> 15)
    value = value * 0x735A2D97
    return value ^ (value >> 15)


if triton.knobs.runtime.interpret:

    @triton.jit
    def _gumbel(uniform):
        inner = -tl.log(1.0 - uniform.to(tl.float64)).to(tl.float32)
        return -tl.log(inner.to(tl.float64)).to(tl.float32)

else:

    @triton.jit
    def _gumbel(uniform):
        return -libdevice.log(-libdevice.log1p(-uniform))


@triton.jit
def gumbel_noise(seed, position, tokens):
    """Noise of `tokens` [n] for one seed and position, 64 bits each; [n] f32."""
    low = _mix(seed.to(tl.uint32) ^ _mix((position + 1).to(tl.uint32)))
    high = _mix((seed >> 32).to(tl.uint32) ^ (low * _GOLDEN))
    keys = _mix(tokens.to(tl.uint32) * _GOLDEN + 1)
    return noise_of_bits(_mix(_mix(keys ^ low) ^ high))


@triton.jit
def noise_of_bits(bits):
    """Map hashes [n] u32 to standard Gumbel noise [n] f32, all finite."""
    return _gumbel(tl.minimum((bits.to(tl.float32) + 0.5) * _TO_UNIT, _LARGEST_UNIFORM))


@triton.jit
def perturb(values, here, vocab, row, request, seeds, positions_ptr, ids_ptr):
    """Add the noise of a row's tokens `here`; ids [vocab] where indices are not ids."""
    ids = here
    if ids_ptr is not None:
        ids = tl.load(ids_ptr + here, mask=here < vocab, other=0).to(tl.int32)
    return values + gumbel_noise(of_request(seeds, request), tl.load(positions_ptr + row), ids)
