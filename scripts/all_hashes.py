"""`python -m scripts.all_hashes [--triton]`: noise of all 2^32 hashes is finite and never rises.

It calls the function that samples on a CPU, or with --triton the kernel's: on a GPU, or without one
under TRITON_INTERPRET=1. `make test` covers the 2^16 smallest and largest hashes.
"""

import argparse
import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from tqdm import tqdm

from specdecode_kernels.torch.sampling import noise_of_bits
from specdecode_kernels.triton import noise

CHUNK = 1 << 20
HASHES = 1 << 32
BLOCK = 4096

NoiseOfBits = Callable[[Tensor], Tensor]
"""Noise [n] f32 of hashes [n] i64."""


@triton.jit
def noise_kernel(bits_ptr, out_ptr, BLOCK: tl.constexpr):
    here = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + here, noise.noise_of_bits(tl.load(bits_ptr + here).to(tl.uint32)))


def torch_noise(bits: Tensor) -> Tensor:
    """The noise of the torch reference, which samples on a CPU too."""
    return noise_of_bits(bits[None])[0]


def triton_noise(bits: Tensor) -> Tensor:
    """The noise of the Triton kernel."""
    bits = bits.to("cuda" if torch.cuda.is_available() else "cpu")
    found = torch.empty(len(bits), device=bits.device)
    block = BLOCK if bits.is_cuda else CHUNK  # the interpreter takes a while for each program
    noise_kernel[(CHUNK // block,)](bits, found, BLOCK=block)
    return found.cpu()


def wrong_hash(noise_of: NoiseOfBits) -> str | None:
    """Return the first hash whose noise is not finite or exceeds that of the hash before it."""
    before = torch.inf
    for start in tqdm(range(0, HASHES, CHUNK), unit_scale=CHUNK, unit="hash"):
        noise = noise_of(torch.arange(start, start + CHUNK))
        previous = torch.cat([torch.tensor([before]), noise[:-1]])
        is_wrong = ~noise.isfinite() | (noise > previous)
        if is_wrong.any():
            place = int(is_wrong.nonzero()[0])
            return f"hash {start + place}: noise {noise[place]} after {previous[place]}"
        if not start:
            print(f"largest noise {noise[0]:.7}")
        before = float(noise[-1])
    print(f"smallest noise {before:.7}")
    return None


def main() -> int:
    """Return 1 where a hash has a wrong noise."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="all_hashes")
    parser.add_argument("--triton", action="store_true")
    found = wrong_hash(triton_noise if parser.parse_args().triton else torch_noise)
    print(found or f"the noise of all {HASHES} hashes is finite")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
