"""Device selection, its order of sums, processes of several devices, free memory, CPU affinity."""

import logging
import os
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import torch
from torch import distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]

from specdecode_api.report import TerminationReason
from specdecode_engine.ranks import FEW_ROWS, ProcessRanks, Ranks
from specdecode_engine.startup.driver import CudaUnavailable, DriverTooOld, explain_unavailable
from specdecode_kernels import SumOrder
from specdecode_kernels.choice import blocks32_unsupported_reason

log = logging.getLogger(__name__)

_UNLIMITED = 1 << 62
_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def choose_device(wanted: str) -> torch.device:
    """Turn "auto", "cpu" or "cuda" into a device.

    Raises:
        CudaUnavailable: cuda is requested and not available.
    """
    if wanted == "cpu" or torch.cuda.is_available():
        return torch.device("cpu" if wanted == "cpu" else "cuda")
    unavailable = explain_unavailable()
    if wanted == "cuda":
        raise unavailable
    if isinstance(unavailable, DriverTooOld):
        log.warning("the engine runs on the CPU: %s", unavailable)
    return torch.device("cpu")


class SumOrderUnavailable(Exception):
    """The requested order of sums cannot be computed; the message contains the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CANNOT_SERVE


def choose_sum_order(wanted: str, device: torch.device, dtype: torch.dtype) -> SumOrder:
    """Return the order in which linear maps on a CPU add products; auto is that of the inputs.

    Raises:
        SumOrderUnavailable: blocks32 is requested, and the device or the type has none.
    """
    if wanted != "blocks32":
        return "inputs"
    if (reason := blocks32_unsupported_reason(device, dtype)) is not None:
        raise SumOrderUnavailable(
            f"model.sum_order blocks32: {reason}, or set model.sum_order to auto"
        )
    return "blocks32"


def join_ranks(
    rank: int, size: int, store: str, links: Sequence[Connection], device: torch.device
) -> Ranks:
    """Wait for the processes of all ranks; rank r uses the r-th GPU.

    They connect on the loopback interface: nobody outside of the pod reaches their ports.

    Args:
        store: path of a file by which they find each other.
        links: see `ProcessRanks`.

    Raises:
        CudaUnavailable: there are fewer GPUs than ranks.
    """
    if device.type == "cuda" and (count := torch.cuda.device_count()) < size:
        raise CudaUnavailable(
            f"parallelism.tensor is {size}, and {count} GPUs are visible; request {size} GPUs "
            f"(nvidia.com/gpu), or set parallelism.tensor to {count}"
        )
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    if device.type == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=FileStore(store, size),
        rank=rank,
        world_size=size,
    )
    ranks = ProcessRanks(links)
    for rows in (1, FEW_ROWS * size + 1):  # NCCL allocates before memory is planned
        ranks.add(torch.zeros(rows, 1, device=device))
    return ranks


def device_name(device: torch.device) -> str:
    """Name of the hardware that a measured time is valid for; of a CPU with its threads."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(models, 'CPU')}, {torch.get_num_threads()} threads"


def available_bytes(device: torch.device) -> int:
    """Memory that can be allocated on the device, within the container's limit.

    What loading has left in torch's cache is returned to the device first.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(_free_of_machine(), _free_of_container(Path("/sys/fs/cgroup")))


def total_bytes(device: torch.device) -> int:
    """All memory of the device, within the container's limit, in use or not."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return int(total)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (limit for limit, _ in _limits_of_container(Path("/sys/fs/cgroup")))
    return min(machine, next(limits, _UNLIMITED))


def keep_to(cpu_list: str) -> int:
    """Pin this thread and the threads it starts to a list of CPUs, e.g. 0-3,8.

    Returns:
        The number of CPUs.

    Raises:
        RuntimeError: the list is empty or contains CPUs that this process may not use.
    """
    wanted, may_use = read_cpu_list(cpu_list), os.sched_getaffinity(0)
    if not wanted:
        raise RuntimeError(f"cpu_affinity {cpu_list} names no processor; a range goes upwards")
    missing = sorted(wanted - may_use)
    if missing:
        raise RuntimeError(
            f"cpu_affinity {cpu_list} names processors {_as_cpu_list(missing)}, and this process "
            f"may use {_as_cpu_list(sorted(may_use))}; name some of these, or leave it out"
        )
    os.sched_setaffinity(0, wanted)
    return len(wanted)


def read_cpu_list(cpu_list: str) -> set[int]:
    """Parse comma-separated CPU numbers and ranges."""
    numbers: set[int] = set()
    for part in cpu_list.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _as_cpu_list(numbers: list[int]) -> str:
    """Write ascending CPU numbers as `read_cpu_list` parses them: 0-3,8."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        first, last = ranges.pop() if ranges else (number, number - 1)
        if number > last + 1:
            ranges.append((first, last))
            first = number
        ranges.append((first, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def default_threads(processes: int = 1) -> int:
    """Number of torch threads of each process on a CPU: one core is left for the HTTP server.

    Oversubscribed threads cost far more than they gain, so the CPU quota of a container counts.
    """
    cores = min(len(os.sched_getaffinity(0)), _quota_cores(Path("/sys/fs/cgroup")))
    return max(1, (cores - 1) // processes)


def _quota_cores(root: Path) -> int:
    """Whole cores that the container may use; many where it has no quota."""
    file = root / "cpu.max"
    if file.exists():
        quota, period = file.read_text().split()
        return 1 << 20 if quota == "max" else int(quota) // int(period)
    quota_file, period_file = root / "cpu/cpu.cfs_quota_us", root / "cpu/cpu.cfs_period_us"
    if not quota_file.exists() or int(quota_file.read_text()) < 0:
        return 1 << 20
    return int(quota_file.read_text()) // int(period_file.read_text())


def _free_of_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable; set kv_cache_bytes in the boot file")


def _limits_of_container(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield the memory that a container may use, if that is limited, and the file of what it does.

    Args:
        root: folder of its cgroup.
    """
    for limit_name, usage_name in _CGROUP_FILES:
        limit_file = root / limit_name
        if limit_file.exists() and (limit := limit_file.read_text().strip()) != "max":
            yield int(limit), root / usage_name


def _free_of_container(root: Path) -> int:
    for limit, usage_file in _limits_of_container(root):
        if usage_file.exists():
            return max(limit - int(usage_file.read_text()), 0)
    return _UNLIMITED
