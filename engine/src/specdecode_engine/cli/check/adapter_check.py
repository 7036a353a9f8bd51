"""Whether LoRA adapters fit a target, and what is in them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.model.checkpoint.adapters.adapter import Adapter
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.implementations import read_config
from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.adapter_memory import packed_bytes
from specdecode_engine.startup.model_check import PairCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCheck:
    """One adapter. What is unknown, since it cannot be applied, is None."""

    path: Path
    base_name: str | None = None  # of the machine that trained it
    ranks: tuple[int, ...] = ()
    maps: Mapping[str, int] | None = None  # how many layers, by the name of the linear map
    bytes: int | None = None  # of all factors in float32
    memory_bytes: int | None = None  # of all factors as an engine packs them
    reason: str | None = None  # why it cannot be applied

    @classmethod
    def of(cls, adapter: Adapter, base: AdapterBase) -> "AdapterCheck":
        maps: dict[str, int] = {}
        for module in adapter.factors:
            name = re.sub(r"^model\.(layers\.\d+\.)?", "", module)
            maps[name] = maps.get(name, 0) + 1
        return cls(
            path=adapter.folder,
            base_name=adapter.config.base_name,
            ranks=adapter.ranks,
            maps=dict(sorted(maps.items())),
            bytes=adapter.bytes,
            memory_bytes=packed_bytes(adapter.factors, base),
        )

    def document(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return {
            "path": str(self.path),
            "base_model_name_or_path": self.base_name,
            "ranks": list(self.ranks),
            "maps": self.maps,
            "bytes": self.bytes,
            "memory_bytes": self.memory_bytes,
            "reason": self.reason,
        }

    def lines(self) -> list[str]:
        """Return the report for people, without the reason."""
        lines = [f"adapter: {self.path}"]
        if self.maps is None or self.bytes is None or self.memory_bytes is None:
            return [*lines, "  not usable      see the reason"]
        ranks = ", ".join(map(str, self.ranks))
        maps = ", ".join(f"{name} ({count})" for name, count in self.maps.items())
        return [
            *lines,
            f"  trained on      {self.base_name or 'unknown'}",
            f"  rank            {ranks}",
            f"  linear maps     {maps}",
            f"  factors         {self.bytes / 2**20:.1f} MiB in float32, "
            f"{self.memory_bytes / 2**20:.1f} MiB packed in an engine",
        ]


def check_adapters(
    folders: Sequence[Path], target: Path, pair: PairCheck, *, has_weights: bool
) -> tuple[AdapterCheck, ...]:
    """Check adapters against a target; never raises for an adapter.

    Args:
        target: the folder of the target.
        has_weights: whether the folder has whole tensors, not headers alone.
    """
    if not folders:
        return ()
    if pair.target.reason is not None:
        reason = "the target cannot be served, so the adapter was not read"
        return tuple(AdapterCheck(path=one, reason=f"{one}: {reason}") for one in folders)
    if pair.target.ranks > 1:
        reason = (
            f"adapters are computed by one rank, and --tensor-parallel-size is "
            f"{pair.target.ranks}: use 1, or merge the adapter into the model"
        )
        return tuple(AdapterCheck(path=one, reason=f"{one}: {reason}") for one in folders)
    try:
        weights = open_checkpoint(target) if has_weights and pair.target.has_tensors else None
        base = adapter_base(target, read_config(target), weights)
    except CheckpointError as error:
        return tuple(AdapterCheck(path=one, reason=str(error)) for one in folders)
    return tuple(_check(folder, base) for folder in folders)


def _check(folder: Path, base: AdapterBase) -> AdapterCheck:
    try:
        return AdapterCheck.of(Adapter.read(folder, base), base)
    except CheckpointError as error:
        return AdapterCheck(path=folder, reason=str(error))
