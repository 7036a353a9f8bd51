"""The shadow CUDA device in place of a GPU: the whole script runs, its figures mean nothing.

Kernels do not run there; the reference computes their numbers. See tests/shadow_cuda.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

from bench.cpu.kernels import experts, linear
from bench.gpu import random_weights
from bench.gpu.sections import attention, latents, launches, parity, peers, small_kernels, trace
from bench.gpu.stopwatch import BusySpan
from specdecode_kernels import Backend, Choice, choose_backend
from specdecode_kernels.testing import backend_of
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import GIB
from tests.shadow_cuda.flashinfer_module import installed_flashinfer
from tests.shadow_cuda.ops import with_reference_numbers

TOTAL_BYTES = 4 * GIB
TINY_EXPERTS = {"tiny": (8, 2, 64, 32)}
TINY_MAPS = ((128, 64),)


@contextmanager
def shadow_device() -> Iterator[None]:
    """Let the sections find the shadow device, with Triton and FlashInfer."""
    with ExitStack() as stack:
        device = stack.enter_context(shadow_cuda(TOTAL_BYTES))
        stack.enter_context(installed_flashinfer(device))

        def choose(*arguments: object, **named: object) -> Choice:
            choice = choose_backend(*arguments, **named)  # type: ignore[arg-type]
            return choice._replace(backend=with_reference_numbers(choice.backend, device))

        def build(*arguments: object) -> Backend:
            return with_reference_numbers(backend_of(*arguments), device)  # type: ignore[arg-type]

        on_cpu = torch.Generator()  # one for a GPU needs a driver
        stack.enter_context(mock.patch.object(random_weights, "Generator", return_value=on_cpu))

        def count_launches(work: Callable[[], object], where: object) -> list[BusySpan]:
            before = device.launches
            work()
            return [BusySpan(number, number + 0.5) for number in range(device.launches - before)]

        for module in (small_kernels, trace):
            stack.enter_context(mock.patch.object(module, "busy_spans", count_launches))
        for module in (attention, latents, parity, peers):
            stack.enter_context(mock.patch.object(module, "choose_backend", choose))
        for module in (launches, parity, small_kernels):
            stack.enter_context(mock.patch.object(module, "backend_of", build))
        stack.enter_context(mock.patch.object(experts, "SIZES", TINY_EXPERTS))
        stack.enter_context(mock.patch.object(linear, "SIZES", TINY_MAPS))
        yield
