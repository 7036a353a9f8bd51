"""The boot file of a resource's engines."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from specdecode_api import names
from specdecode_api.boot import (
    EngineBoot,
    MemoryBoot,
    ModelBoot,
    SchedulingBoot,
    ServerBoot,
    SpeculationBoot,
    TableEntry,
)
from specdecode_api.quantity import amount, whole_amount
from specdecode_api.v1alpha1 import Spec, resolve
from specdecode_operator.children import api_keys
from specdecode_operator.children.models import Mounts

_NOTHING: Mapping[str, TableEntry] = MappingProxyType({})


def boot_file(
    name: str, uid: str, spec: Spec, mounts: Mounts, tuned: Mapping[str, TableEntry] = _NOTHING
) -> EngineBoot:
    """Build the boot file from a spec and the learned table.

    Raises:
        ValueError: the contract rejects the combination.
    """
    return EngineBoot(
        model=ModelBoot(
            path=mounts.target_path,
            served_name=spec.model.served_name or name,
            dtype=spec.model.dtype,
            context_length=spec.model.context_length,
        ),
        speculation=_speculation(spec, mounts, tuned),
        memory=_memory(spec),
        scheduling=SchedulingBoot(
            max_running_requests=spec.serving.max_running_requests,
            max_queued_requests=spec.serving.max_queued_requests,
            chunked_prefill_tokens=spec.serving.chunked_prefill_tokens,
        ),
        server=ServerBoot(
            management_port=names.MANAGEMENT_PORT,
            drain_seconds=spec.lifecycle.drain_seconds,
            step_timeout_seconds=spec.lifecycle.step_timeout_seconds,
            api_key_path=api_keys.path(spec),
            # Known only to accounts that may read the custom resource or its boot file.
            owner=(uid or None) if spec.serving.api_keys else None,
            request_labels=tuple(spec.serving.request_labels),
        ),
        device="cpu" if spec.device == "CPU" else "cuda",
        threads=threads(spec),
    )


def threads(spec: Spec) -> int | None:
    """Threads of an engine on a CPU: as configured, else its CPU limit.

    An engine that starts a thread per CPU of the node but is limited to two CPUs is throttled.
    """
    if spec.serving.threads is not None:
        return spec.serving.threads
    limit = spec.resources.limits.get("cpu")
    if spec.device != "CPU" or limit is None:
        return None
    return max(1, math.floor(amount(limit)))


def _speculation(spec: Spec, mounts: Mounts, tuned: Mapping[str, TableEntry]) -> SpeculationBoot:
    wanted = spec.speculation
    resolved = resolve(wanted)
    return SpeculationBoot(
        algorithm=wanted.algorithm,
        draft_path=mounts.draft_path,
        topk=wanted.topk,
        num_steps=resolved.num_steps,
        num_draft_tokens=resolved.num_draft_tokens,
        policy=wanted.adaptive.policy,
        table={
            bound: TableEntry(**entry.model_dump())
            for bound, entry in wanted.adaptive.batch_sizes.items()
        },
        tuned=dict(tuned),
    )


def _memory(spec: Spec) -> MemoryBoot:
    size = spec.serving.kv_cache_size
    return MemoryBoot(
        page_size=spec.page_size,
        kv_cache_bytes=None if size is None else whole_amount(size),
    )
