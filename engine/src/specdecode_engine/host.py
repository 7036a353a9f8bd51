"""Facts of the machine: which device to compute on and how much memory it has left."""

import os
from pathlib import Path

import torch

_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def choose_device(wanted: str) -> torch.device:
    """Turn "auto", "cpu" or "cuda" into a device.

    Raises:
        RuntimeError: cuda was asked for and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("device cuda was asked for and torch finds none; use device cpu or auto")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def device_name(device: torch.device) -> str:
    """What a measured time is valid for: the product's name, of a CPU with the threads used."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(models, 'CPU')}, {torch.get_num_threads()} threads"


def available_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on the device, within the container's own limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(_free_of_machine(), _free_of_container(Path("/sys/fs/cgroup")))


def keep_to(cpu_list: str) -> int:
    """Have this thread, and those that it begins, run on the processors of a list as 0-3,8.

    Returns:
        How many they are.

    Raises:
        RuntimeError: it names none, or some that this process may not use.
    """
    wanted, may_use = read_cpu_list(cpu_list), os.sched_getaffinity(0)
    if not wanted:
        raise RuntimeError(f"cpu_affinity {cpu_list} names no processor; a range goes upwards")
    missing = sorted(wanted - may_use)
    if missing:
        raise RuntimeError(
            f"cpu_affinity {cpu_list} names processors {missing}, and this process may use "
            f"{sorted(may_use)}; name some of these, or leave it out"
        )
    os.sched_setaffinity(0, wanted)
    return len(wanted)


def read_cpu_list(cpu_list: str) -> set[int]:
    """Read numbers and ranges of processors, with commas between."""
    numbers: set[int] = set()
    for part in cpu_list.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def default_threads() -> int:
    """Processor threads for torch on a CPU: one less than there are, for the server beside it.

    Threads that wait for a busy core cost far more than they bring, so a container's own quota
    counts where it has one.
    """
    return max(1, min(len(os.sched_getaffinity(0)), _quota_cores(Path("/sys/fs/cgroup"))) - 1)


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


def _free_of_container(root: Path) -> int:
    for limit_name, usage_name in _CGROUP_FILES:
        limit_file, usage_file = root / limit_name, root / usage_name
        if limit_file.exists() and usage_file.exists():
            limit = limit_file.read_text().strip()
            if limit != "max":
                return max(int(limit) - int(usage_file.read_text()), 0)
    return 1 << 62
