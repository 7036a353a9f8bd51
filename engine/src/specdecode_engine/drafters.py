"""From an algorithm's name to a drafter: checkpoints, KV shapes and sizes of each kind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.forward import eagle3
from specdecode_engine.forward.checkpoint import Checkpoint, OpenStore
from specdecode_engine.forward.draft_passes import head_passes, model_passes
from specdecode_engine.forward.eagle1 import Eagle1Head
from specdecode_engine.forward.eagle1_config import Eagle1Config
from specdecode_engine.forward.eagle3 import Eagle3Head
from specdecode_engine.forward.eagle_head import EagleHead
from specdecode_engine.forward.errors import DraftMismatch
from specdecode_engine.forward.kv_pool import DraftScratch, KvPool
from specdecode_engine.forward.linears import Linears
from specdecode_engine.forward.llama import Llama
from specdecode_engine.forward.model_config import DecoderConfig, LlamaConfig
from specdecode_engine.forward.passes import PassFunction
from specdecode_engine.graph_plan.passes import PassKind, PassWidths
from specdecode_engine.graphs.states import RuntimeStates
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.slots import SlotTable
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.eagle import EagleDrafter
from specdecode_engine.speculate.expander import Expander
from specdecode_engine.speculate.features import FeatureRing
from specdecode_engine.speculate.standalone import StandaloneDrafter
from specdecode_kernels import AttentionBackend

_KEPT_FEATURES = 64
"""Target features kept per slot, for a draft that rounds without drafting left behind."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """Shape of a draft's key-value rows."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, layers: int, decoder: DecoderConfig) -> "KvShape":
        """Cover so many layers of one kind."""
        return cls(layers, decoder.num_key_value_heads, decoder.head_dim)


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """The largest sizes over all shapes that a round may draft in."""

    scratch_rows: int
    round_rows: int  # rows that one round can commit

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
    """A draft in memory, not yet wired; `model` decides the kind."""

    model: Llama | EagleHead
    shape: KvShape
    catch_up: PassWidths
    dtype: torch.dtype
    device: torch.device

    def page_bytes(self, page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page of the draft's cache, kept in `dtype`."""
        shape = self.shape
        return KvPool.bytes_per_page(shape.layers, page_size, shape.kv_heads, shape.head_dim, dtype)

    def fixed_bytes(self, running: int, limits: DraftLimits) -> int:
        """Bytes of the scratch and of the kept features."""
        features = (running + 1) * (_KEPT_FEATURES + limits.round_rows) * self.catch_up.hidden_in
        scratch = running * self.page_bytes(limits.scratch_rows, self.dtype)
        return features * self.dtype.itemsize + scratch

    def make_pool(
        self, limits: Limits, dtype: torch.dtype, attention: AttentionBackend, poison: bool
    ) -> KvPool:
        """Allocate the draft's cache, page for page beside the target's."""
        return KvPool(
            layers=self.shape.layers,
            pages=limits.pages,
            page_size=limits.page_size,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            dtype=dtype,
            device=self.device,
            attention=attention,
            poison=poison,
        )

    def widths(self) -> dict[PassKind, PassWidths]:
        """Sizes of the draft's passes."""
        step = replace(self.catch_up, hidden_in=self.catch_up.hidden_out)
        return {PassKind.CATCH_UP: self.catch_up, PassKind.STEP: step}

    def make_passes(
        self, pool: KvPool, running: int, limits: DraftLimits
    ) -> Mapping[PassKind, PassFunction]:
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
        if isinstance(self.model, Llama):
            return model_passes(self.model, pool, scratch)
        return head_passes(self.model, pool, scratch)

    def make_drafter(
        self,
        pool: KvPool,
        table: SlotTable,
        sampler: Sampler,
        states: RuntimeStates,
        running: int,
        limits: DraftLimits,
    ) -> Drafter:
        """Wire the drafter of this kind; `states` runs its passes."""
        window = limits.round_rows
        if isinstance(self.model, Llama):
            expander = Expander(table, sampler, prefix_rows=1)
            return StandaloneDrafter(self.model, pool, table, states, expander, window)
        ids = self.model.draft_to_target
        expander = Expander(table, sampler, prefix_rows=0, target_ids=ids)
        ring = FeatureRing(
            slots=running + 1,
            kept=_KEPT_FEATURES,
            round_rows=limits.round_rows,
            width=self.catch_up.hidden_in,
            dtype=self.dtype,
            device=self.device,
        )
        return EagleDrafter(self.model, pool, table, states, expander, ring, window)


def check_fit(boot: EngineBoot) -> None:
    """Hold the draft against the target before the weights of either are read.

    A pair that does not fit would else be found after minutes of loading, again at every restart.

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
    """Load the draft that the boot file asks for; None without speculation.

    `open_store` finds a STANDALONE draft's tensors; heads are read from their folder.

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
    shape = KvShape.of(config.num_hidden_layers, config.decoder)
    widths = PassWidths(
        layers=config.num_hidden_layers,
        hidden=config.decoder.hidden_size,
        intermediate=config.decoder.intermediate_size,
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
    shape = KvShape.of(config.num_hidden_layers, config.decoder)
    ids = head.draft_to_target
    widths = PassWidths(
        layers=config.num_hidden_layers,
        hidden=config.decoder.hidden_size,
        intermediate=config.decoder.intermediate_size,
        logits=target.config.vocab_size if ids is None else len(ids),
        hidden_in=head.capture.width(target.config.decoder.hidden_size),
        hidden_out=config.decoder.hidden_size,
    )
    return DraftModel(head, shape, widths, target.dtype, target.device)
