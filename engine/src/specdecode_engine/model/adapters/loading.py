"""Loads LoRA adapters onto a target, at the start and while it serves."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from specdecode_api.boot.adapters import DEFAULT_RANK, AdaptersBoot
from specdecode_engine.model.checkpoint.adapters.adapter import Adapter
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterFile
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.checkpoint.record_tensors import tensor_bytes
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.adapted_llama import AdaptedLlama, PackedAdapter, adapted_llama
from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.adapter_memory import slot_bytes
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.model.target.llama import Llama
from specdecode_kernels import choose_backend
from specdecode_kernels.torch.elementwise import accumulation_dtype

log = logging.getLogger(__name__)


class ReadAdapter(NamedTuple):
    """An adapter that is ready to be used, and what is known of it."""

    name: str
    packed: PackedAdapter
    digest: str
    facts: Mapping[str, object]

    @property
    def bytes(self) -> int:
        """Memory of its factors."""
        return tensor_bytes(tuple(self.packed))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAdapters:
    """A target, the same with adapters, and which adapter each slot has.

    `read` may be called on any thread; all else belongs to the engine's.
    """

    base: LanguageModel
    adapted: AdaptedLlama
    num_slots: int  # slot 0, which has no adapter, is not among them
    max_rank: int | None  # None: any
    kept_bytes: int | None  # for all slots, where adapters may come; None: those of the start
    slots: dict[str, int] = field(default_factory=dict)  # by name
    adapters: dict[str, ReadAdapter] = field(default_factory=dict)  # by name

    @property
    def bytes(self) -> int:
        """Memory of all factors."""
        return sum(one.bytes for one in self.adapters.values())

    @property
    def planned_bytes(self) -> int:
        """Memory that factors may take."""
        return self.bytes if self.kept_bytes is None else max(self.bytes, self.kept_bytes)

    @property
    def facts(self) -> list[Mapping[str, object]]:
        """What is known of each adapter, in the order in which they came."""
        return [one.facts for one in self.adapters.values()]

    @property
    def digests(self) -> Mapping[str, str]:
        """The hash of each adapter's files, by its name."""
        return {name: one.digest for name, one in self.adapters.items()}

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return len(self.slots) >= self.num_slots

    def read(self, name: str, folder: Path) -> ReadAdapter:
        """Read and pack an adapter.

        Raises:
            CheckpointError: the adapter is damaged, not supported, or of another base.
        """
        base = self.adapted.base
        AdapterFile.open(folder, base).check_rank(self.max_rank)
        adapter = Adapter.read(folder, base)
        facts = {
            "name": name,
            "path": str(folder),
            "ranks": list(adapter.ranks),
            "linear_maps": len(adapter.factors),
            "sha256": adapter.digest,
        }
        return ReadAdapter(name, self.adapted.pack(adapter), adapter.digest, facts)

    def add(self, one: ReadAdapter) -> None:
        """Use an adapter from the next step on; a slot must be free."""
        slot = min({*range(1, self.num_slots + 1)} - {*self.slots.values()})
        self.adapted.put(slot, one.packed)
        self.slots[one.name], self.adapters[one.name] = slot, one

    def remove(self, name: str) -> None:
        """Release the memory of an adapter that no request has."""
        self.adapted.put(self.slots.pop(name), None)
        del self.adapters[name]


def load_adapters(folder: Path, target: LanguageModel, boot: AdaptersBoot) -> LoadedAdapters | None:
    """Read the adapters of a target; None where there are none, and none may come.

    Args:
        folder: of the target's checkpoint.

    Raises:
        CheckpointError: an adapter is damaged, not supported, or of another base.
    """
    if not boot.modules and boot.root is None:
        return None
    base = adapter_base(folder, target.config, open_checkpoint(folder))
    assert isinstance(target, Llama)
    # Not quantized: what factors add is small next to the base's map.
    dtype, head_dim = accumulation_dtype(target.dtype), target.config.decoder.head_dim
    linears = Linears.of(choose_backend("auto", target.device, dtype, head_dim))
    num_slots, max_rank = boot.num_slots, boot.max_rank
    if boot.root is not None and max_rank is None:
        opened = [AdapterFile.open(Path(path), base) for path in boot.modules.values()]
        max_rank = max([DEFAULT_RANK, *(one.ranks[-1] for one in opened)])
    kept = None if max_rank is None or boot.root is None else num_slots * slot_bytes(max_rank, base)
    adapted = adapted_llama(target, base, 1 + num_slots, linears)
    loaded = LoadedAdapters(target, adapted, num_slots, max_rank, kept)
    for name, path in boot.modules.items():
        loaded.add(loaded.read(name, Path(path)))
    counted = len(boot.modules), loaded.bytes / 2**20, num_slots, loaded.planned_bytes / 2**20
    log.info("LoRA adapters: %d, %.1f MiB; memory is kept for %d, %.1f MiB", *counted)
    return loaded
