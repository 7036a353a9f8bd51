"""The Triton kernels that an engine needs: listed from its configuration, compiled at start."""

import logging
import os
import time
from pathlib import Path

import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.shapes import StepSizes
from specdecode_engine.model.checkpoint.config_file import DTYPES
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.implementations import divide_config, read_config
from specdecode_engine.process.start_progress import ShowProgress, progress_bar
from specdecode_engine.startup.config import EngineConfig, draft_shapes, resolve_speculation
from specdecode_engine.startup.draft_methods.registry import METHODS, draft_folder, read_draft
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.stats.kernel_compiles import AFTER_READY

log = logging.getLogger(__name__)


def has_compiled_kernels(config: EngineConfig) -> bool:
    """Whether ops of an engine are kernels that Triton compiles, and does not interpret."""
    if config.device.type != "cuda" or config.kernels["target"].backend.name != "triton":
        return False
    from specdecode_kernels.triton.tiles import is_interpreted  # Triton may not be installed

    return not is_interpreted()


def compile_kernels(config: EngineConfig, *, progress: ShowProgress | None) -> None:
    """Compile every kernel of an engine on a GPU whose ops are Triton's; log the time."""
    if not has_compiled_kernels(config):
        return
    from specdecode_engine.startup.kernel_calls import op_calls
    from specdecode_kernels.triton.variants import compile_variants, list_variants

    AFTER_READY.stop()
    started_s = time.monotonic()
    major, minor = torch.cuda.get_device_capability(config.device)
    capability = 10 * major + minor
    calls = op_calls(needs_of_config(config), capability, config.method)
    variants = list_variants(calls, capability)
    threads = len(os.sched_getaffinity(0))
    done = compile_variants(variants, threads)
    with progress_bar(progress, "compiling kernels", len(variants), "kernel") as add:
        for _ in done:
            add(1)
    log.info("%d Triton kernels ready in %.1f s", len(variants), time.monotonic() - started_s)


def watch_compiles(config: EngineConfig) -> None:
    """Count and log what is compiled from now on."""
    if has_compiled_kernels(config):
        AFTER_READY.watch()


def needs_of_config(config: EngineConfig) -> KernelNeeds:
    models: dict[str, DraftConfig] = {"target": config.target}
    if config.draft is not None:
        models["draft"] = config.draft
    return KernelNeeds.of(config.boot, models, config.sizes, config.dtype, config.kv_dtype)


def needs_of_boot(boot: EngineBoot) -> KernelNeeds:
    """Read config.json of the models only; a type that it leaves open is bfloat16."""
    whole = read_config(Path(boot.model.path), boot.model.implementation)
    target = divide_config(whole, boot.parallelism.tensor, Path(boot.model.path))
    models: dict[str, DraftConfig] = {"target": target}
    folder = draft_folder(boot)
    draft = None
    if folder is not None:
        draft = read_draft(boot.speculation.algorithm, folder, whole)
    dtype = target.dtype or torch.bfloat16
    if boot.model.dtype != "auto":
        dtype = DTYPES[boot.model.dtype]
    kv_dtype = torch.float8_e4m3fn if boot.memory.kv_cache_dtype == "fp8_e4m3" else dtype
    shapes = draft_shapes(*resolve_speculation(boot.speculation, draft))
    sizes = StepSizes.over(shapes, is_overlapped=True)
    if draft is not None:
        models["draft"] = METHODS[boot.speculation.algorithm].used_part(draft, sizes.max_steps)
    return KernelNeeds.of(boot, models, sizes, dtype, kv_dtype)
