"""Loads LoRA adapters onto a target."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.model.adapters.pool import AdapterPool
from specdecode_engine.model.checkpoint.adapters.adapter import Adapter
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.checkpoint.record_tensors import tensor_bytes
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.adapted_llama import adapted_llama
from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.model.target.llama import Llama
from specdecode_kernels import ActiveRows, choose_backend
from specdecode_kernels.torch.elementwise import accumulation_dtype

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """A target with the factors of all adapters, and what is known of each."""

    base: LanguageModel
    adapted: LanguageModel
    active: ActiveRows
    names: tuple[str, ...]
    facts: Sequence[dict[str, object]]

    @property
    def bytes(self) -> int:
        """Memory of all factors."""
        return tensor_bytes((self.base, self.adapted)) - tensor_bytes(self.base)

    def pool(self, num_rows: int) -> AdapterPool:
        """Make the pool for a request table of `num_rows` rows."""
        return AdapterPool(self.base, self.adapted, self.active, self.names, num_rows)


def load_adapters(
    folder: Path, target: LanguageModel, modules: Mapping[str, str]
) -> LoadedAdapters | None:
    """Read all adapters of a target; None where there are none.

    Args:
        folder: of the target's checkpoint.
        modules: folders by the adapters' names.

    Raises:
        CheckpointError: an adapter is damaged, not supported, or of another base.
    """
    if not modules:
        return None
    base = adapter_base(folder, target.config, open_checkpoint(folder))
    assert isinstance(target, Llama)
    adapters = [Adapter.read(Path(path), base) for path in modules.values()]
    # Not quantized: what factors add is small next to the base's map.
    dtype, head_dim = accumulation_dtype(target.dtype), target.config.decoder.head_dim
    linears = Linears.of(choose_backend("auto", target.device, dtype, head_dim))
    adapted, active = adapted_llama(target, base, adapters, linears)
    facts = [
        {
            "name": name,
            "path": str(one.folder),
            "ranks": list(one.ranks),
            "linear_maps": len(one.factors),
            "sha256": one.digest,
        }
        for name, one in zip(modules, adapters, strict=True)
    ]
    loaded = LoadedAdapters(target, adapted, active, tuple(modules), facts)
    log.info("LoRA adapters: %d, %.1f MiB", len(modules), loaded.bytes / 2**20)
    return loaded
