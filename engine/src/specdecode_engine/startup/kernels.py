"""The Triton kernels that an engine needs: listed from its configuration, compiled at start."""

import logging
import os
import time

import torch
from tqdm import tqdm

from specdecode_engine.startup.config import EngineConfig
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.stats.kernel_compiles import AFTER_READY

log = logging.getLogger(__name__)


def has_compiled_kernels(config: EngineConfig) -> bool:
    """Whether ops of an engine are kernels that Triton compiles, and does not interpret."""
    if config.device.type != "cuda" or config.kernels["target"].backend.name != "triton":
        return False
    from specdecode_kernels.triton.tiles import is_interpreted  # Triton may not be installed

    return not is_interpreted()


def compile_kernels(config: EngineConfig, *, progress: bool) -> None:
    """Compile every kernel of an engine on a GPU whose ops are Triton's; log the time."""
    if not has_compiled_kernels(config):
        return
    from specdecode_engine.startup.kernel_calls import op_calls
    from specdecode_kernels.triton.variants import compile_variants, list_variants

    AFTER_READY.stop()
    started_s = time.monotonic()
    major, minor = torch.cuda.get_device_capability(config.device)
    capability = 10 * major + minor
    variants = list_variants(op_calls(KernelNeeds.of_config(config), capability), capability)
    threads = len(os.sched_getaffinity(0))
    done = compile_variants(variants, threads)
    for _ in tqdm(done, "compiling kernels", len(variants), disable=not progress):
        """A bar."""
    log.info("%d Triton kernels ready in %.1f s", len(variants), time.monotonic() - started_s)


def watch_compiles(config: EngineConfig) -> None:
    """Count and log what is compiled from now on."""
    if has_compiled_kernels(config):
        AFTER_READY.watch()
