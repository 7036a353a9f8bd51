"""Loads the draft of each algorithm and wires its drafter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.shapes import DraftShape, ForwardKind, ForwardWidths
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model import eagle3
from specdecode_engine.model.checkpoint import Checkpoint, OpenStore
from specdecode_engine.model.draft_forward import DraftNetwork, draft_forwards
from specdecode_engine.model.eagle1 import Eagle1Head
from specdecode_engine.model.eagle1_config import Eagle1Config
from specdecode_engine.model.eagle3 import Eagle3Head
from specdecode_engine.model.errors import DraftMismatch
from specdecode_engine.model.forward import ForwardFunction
from specdecode_engine.model.kv_cache import DraftScratch, KVCache
from specdecode_engine.model.linears import Linears
from specdecode_engine.model.llama import Llama
from specdecode_engine.model.model_config import DecoderConfig, LlamaConfig
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.scheduler import Limits
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.hidden_state_ring import HiddenStateRing
from specdecode_engine.speculate.model_drafter import ModelDrafter
from specdecode_engine.speculate.tree_builder import DraftTreeBuilder
from specdecode_kernels import Backend

_KEPT_HIDDEN_STATES = 64
"""Aux hidden states kept per request, for rows that steps without drafting leave missing."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of a draft's key-value rows."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, layers: int, decoder: DecoderConfig) -> "KVShape":
        """Return the shape of `layers` equal layers."""
        return cls(layers, decoder.num_key_value_heads, decoder.head_dim)


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """The largest sizes over all draft shapes that a step can use."""

    scratch_rows: int
    round_rows: int  # rows that one step can commit

    @classmethod
    def over(cls, shapes: Iterable[DraftShape]) -> "DraftLimits":
        """Cover every shape."""
        known = list(shapes)
        return cls(
            scratch_rows=max(shape.scratch_rows for shape in known),
            round_rows=max(shape.path_length for shape in known),
        )


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft, not yet wired; the type of `model` is its kind."""

    model: DraftNetwork
    shape: KVShape
    catch_up: ForwardWidths
    dtype: torch.dtype
    device: torch.device

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page of the draft's cache, kept in `dtype`."""
        shape = self.shape
        return KVCache.bytes_per_page(
            shape.layers, page_size, shape.kv_heads, shape.head_dim, dtype
        )

    def fixed_bytes(self, running: int, limits: DraftLimits) -> int:
        """Bytes of the scratch and of the kept hidden states."""
        kept = _KEPT_HIDDEN_STATES + limits.round_rows
        hidden = (running + 1) * kept * self.catch_up.hidden_in
        scratch = running * self.page_bytes(limits.scratch_rows, self.dtype)
        return hidden * self.dtype.itemsize + scratch

    def make_pool(self, limits: Limits, dtype: torch.dtype, ops: Backend) -> KVCache:
        """Allocate the draft's KV cache, with the same pages as the target's."""
        return KVCache(
            layers=self.shape.layers,
            pages=limits.pages,
            page_size=limits.page_size,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            dtype=dtype,
            device=self.device,
            ops=ops,
        )

    def widths(self) -> dict[ForwardKind, ForwardWidths]:
        """Columns that the draft's forwards read and return."""
        step = replace(self.catch_up, hidden_in=self.catch_up.hidden_out)
        return {ForwardKind.CATCH_UP: self.catch_up, ForwardKind.DRAFT_STEP: step}

    def make_passes(
        self, pool: KVCache, running: int, limits: DraftLimits
    ) -> Mapping[ForwardKind, ForwardFunction]:
        """Bind the draft to its cache and to a scratch for `running` requests."""
        scratch = DraftScratch(
            layers=self.shape.layers,
            batch=running,
            rows=limits.scratch_rows,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        return draft_forwards(self.model, pool, scratch)

    def make_drafter(
        self,
        pool: KVCache,
        table: RequestTable,
        sampler: Sampler,
        graphs: GraphCache,
        running: int,
        limits: DraftLimits,
    ) -> Drafter:
        """Wire the drafter; `graphs` runs its forwards."""
        ring, prefix_rows, target_ids = None, 1, None
        if not isinstance(self.model, Llama):
            prefix_rows, target_ids = 0, self.model.draft_to_target
            ring = HiddenStateRing(
                slots=running + 1,
                kept=_KEPT_HIDDEN_STATES,
                step_rows=limits.round_rows,
                width=self.catch_up.hidden_in,
                dtype=self.dtype,
                device=self.device,
            )
        builder = DraftTreeBuilder(table, sampler, prefix_rows, target_ids)
        return ModelDrafter(self.model, pool, table, graphs, builder, ring, limits.round_rows)


def check_fit(boot: EngineBoot) -> None:
    """Check that the draft fits the target before any weights are read.

    Otherwise a mismatch is found only after minutes of loading, at every restart.

    Raises:
        CheckpointError: one of the folders is not a checkpoint of its kind.
        DraftMismatch: the draft does not fit the target.
    """
    speculation = boot.speculation
    if speculation.draft_path is None:
        return
    folder, target = Path(speculation.draft_path), LlamaConfig.load(Path(boot.model.path))
    if speculation.algorithm is Algorithm.STANDALONE:
        _check_vocabulary(folder, LlamaConfig.load(folder), target)
    elif speculation.algorithm is Algorithm.EAGLE:
        Eagle1Config.load(folder, target)
    else:
        eagle3.check_fit(folder, target)


def load_draft(
    boot: EngineBoot,
    target: Llama,
    device: torch.device,
    progress: bool,
    open_store: OpenStore = Checkpoint.open,
    linears: Linears | None = None,
) -> DraftModel | None:
    """Load the draft named in the boot file; None without speculation.

    `open_store` opens the tensors of a STANDALONE draft; heads are read from their folder.

    Raises:
        CheckpointError: the folder is not a checkpoint of that kind.
        DraftMismatch: it does not fit the target.
    """
    speculation = boot.speculation
    if speculation.algorithm is Algorithm.NONE:
        return None
    assert speculation.draft_path is not None
    folder = Path(speculation.draft_path)
    if speculation.algorithm is Algorithm.STANDALONE:
        draft = Llama.load(
            folder,
            dtype=target.dtype,
            device=device,
            context_length=target.context_length,
            progress=progress,
            open_store=open_store,
            linears=linears,
        )
        return _standalone(draft, folder, target)
    kind = Eagle1Head if speculation.algorithm is Algorithm.EAGLE else Eagle3Head
    return _eagle(kind.load(folder, target, progress=progress, linears=linears), target)


def _standalone(draft: Llama, folder: Path, target: Llama) -> DraftModel:
    _check_vocabulary(folder, draft.config, target.config)
    config = draft.config
    shape = KVShape.of(config.num_hidden_layers, config.decoder)
    widths = ForwardWidths(
        logits=config.vocab_size,
    )
    return DraftModel(draft, shape, widths, target.dtype, target.device)


def _check_vocabulary(folder: Path, draft: LlamaConfig, target: LlamaConfig) -> None:
    if draft.vocab_size != target.vocab_size:
        raise DraftMismatch(
            f"draft {folder} has a vocabulary of {draft.vocab_size} tokens, the target of "
            f"{target.vocab_size}; use a draft that was made for this target"
        )


def _eagle(head: Eagle1Head | Eagle3Head, target: Llama) -> DraftModel:
    config = head.config
    shape = KVShape.of(config.num_hidden_layers, config.decoder)
    ids = head.draft_to_target
    widths = ForwardWidths(
        logits=target.config.vocab_size if ids is None else len(ids),
        hidden_in=head.aux_spec.width(target.config.decoder.hidden_size),
        hidden_out=config.decoder.hidden_size,
    )
    return DraftModel(head, shape, widths, target.dtype, target.device)
