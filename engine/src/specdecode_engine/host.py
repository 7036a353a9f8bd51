"""Facts of the machine: which device to compute on and how much memory it has left."""

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


def available_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on the device, within the container's own limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(_free_of_machine(), _free_of_container(Path("/sys/fs/cgroup")))


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
