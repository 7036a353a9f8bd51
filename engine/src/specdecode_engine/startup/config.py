"""Resolves the boot file and the checkpoints' configs, once, to everything decided before loading.

What a step may use follows from its draft shapes: the widest verify, the longest path, the scratch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from specdecode_api.boot import EngineBoot, ModelBoot, SpeculationBoot
from specdecode_api.report import TerminationReason
from specdecode_api.speculation import MAX_STEPS, Algorithm
from specdecode_engine.adaptive.cost import CostPoint
from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.sampling_defaults import read_sampling_defaults
from specdecode_engine.batch.shapes import (
    DraftShape,
    ForwardKind,
    ForwardShape,
    ForwardWidths,
    StepSizes,
)
from specdecode_engine.graphs.plan import batch_sizes
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterFile
from specdecode_engine.model.checkpoint.checkpoint import OpenStore
from specdecode_engine.model.checkpoint.config_file import DTYPES
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.implementations import divide_config, read_config
from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.config import NO_HIDDEN_STATES, AuxHiddenStates
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.llama import stored_dtype
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.startup.attention import AttentionHeads
from specdecode_engine.startup.device import choose_device, choose_sum_order, device_name
from specdecode_engine.startup.draft_methods.method import DraftMethod, DraftPlan
from specdecode_engine.startup.draft_methods.registry import METHODS, read_checked_draft
from specdecode_engine.startup.policies import make_policy, range_table
from specdecode_kernels import Backend, Choice, choose_backend
from specdecode_kernels.choice import AMPERE

OFF, STATIC, CUDA = "off", "static", "cuda"


class CannotServe(Exception):
    """The boot file requests something unsupported; the message names it."""

    reason: ClassVar[TerminationReason] = TerminationReason.CANNOT_SERVE


class AttentionUnavailable(CannotServe):
    """The requested backend cannot run; the message contains the reason and the remedy."""


class GraphsUnavailable(CannotServe):
    """The boot file requires CUDA graphs and there are none; the message contains the remedy."""


class GraphMode(NamedTuple):
    """off, static or cuda, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that is decided before weights are read; sizes of the KV cache come later."""

    boot: EngineBoot
    target: LanguageModelConfig  # of the part of this rank
    whole_target: LanguageModelConfig  # as stored; of equal hidden size, vocabulary and layers
    draft: DraftConfig | None
    method: DraftMethod
    context_length: int
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype  # of the KV caches of target and draft
    kernels: Mapping[str, Choice]  # of "target", which layers of a draft use too, and of "draft"
    graph_mode: GraphMode
    graph_batch_sizes: tuple[int, ...]  # ascending; decode steps are padded to them
    sizes: StepSizes
    table: RangeTable | None
    aux_spec: AuxHiddenStates  # the target's hidden states that the draft reads
    widths: Mapping[ForwardKind, ForwardWidths]
    ranks: Ranks = ALONE

    @property
    def text_method(self) -> DraftMethod:
        """The method that may draft on the host: that of the fallback, else of the algorithm."""
        fallback = self.boot.speculation.fallback
        return self.method if fallback is None else METHODS[fallback.algorithm]

    @property
    def draft_plan(self) -> DraftPlan | None:
        """With what and in which sizes the draft is computed; None without a draft model."""
        if self.draft is None:
            return None
        return DraftPlan(
            config=self.draft,
            sizes=self.sizes,
            aux_width=self.widths[ForwardKind.VERIFY].hidden_out,
            max_running=self.boot.scheduling.max_running_requests,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            device=self.device,
            ops=self.kernels["draft"].backend,
        )

    @property
    def most_draft_steps(self) -> int | None:
        """Draft steps that the draft can draft at most; None: any number."""
        return None if self.draft is None else self.draft.max_steps

    @property
    def exchanges_drafts_on_cpu(self) -> bool:
        """Whether another draft may be read into the memory that the engine plans."""
        return self.device.type == "cpu" and self.ranks.size == 1

    def make_policy(self, costs: Iterable[CostPoint] = ()) -> AdaptivePolicy:
        """Make the policy; see `policies.make_policy`."""
        return make_policy(
            self.boot.speculation,
            self.table,
            self.graph_batch_sizes,
            costs,
            drafts_blocks=self.method.drafts_blocks,
            drafted=self.sizes.drafted_tokens,
        )

    def draft_forwards(self, shape: DraftShape, batch_size: int) -> Iterable[ForwardShape]:
        """List the forwards of the draft in a step with draft steps."""
        return self.method.forwards(self.sizes, shape, batch_size)


def resolve(
    boot: EngineBoot, open_store: OpenStore | None = None, ranks: Ranks = ALONE
) -> EngineConfig:
    """Read the configs of the checkpoints and decide; no weights are read.

    Args:
        open_store: opens the target's tensors, whose type counts if its config declares none.
        ranks: among which the target is divided.

    Raises:
        CannotServe, CheckpointError, CudaUnavailable, GraphsUnavailable, InvalidDefault,
            SumOrderUnavailable: the message contains the remedy. A draft that does not fit the
            target is found here, not minutes later.
    """
    method, fallback = METHODS[boot.speculation.algorithm], boot.speculation.fallback
    for one in (method, *([] if fallback is None else [METHODS[fallback.algorithm]])):
        if (reason := one.unsupported_reason()) is not None:
            raise CannotServe(reason)
    device = choose_device(boot.device)
    folder = Path(boot.model.path)
    whole_target = read_config(folder, boot.model.implementation)
    read_sampling_defaults(folder)  # the server reads them when the weights are loaded
    target = divide_config(whole_target, ranks.size, folder)
    _check_adapters(boot, device, target)
    draft = read_checked_draft(boot, whole_target)
    speculation, table = resolve_speculation(boot.speculation, draft)
    boot = boot.model_copy(update={"speculation": speculation})
    shapes = draft_shapes(speculation, table)
    if draft is not None:
        draft = method.used_part(draft, max(shapes))
    dtype = _dtype(boot.model, target, device, open_store or open_checkpoint)
    kv_dtype = torch.float8_e4m3fn if boot.memory.kv_cache_dtype == "fp8_e4m3" else dtype
    kernels = _choose_kernels(boot, target, draft, device, dtype, kv_dtype)
    backends = [choice.backend for choice in kernels.values()]
    mode = choose_graph_mode(boot.graphs.mode, device, backends, ranks.size)
    graph_sizes: tuple[int, ...] = ()
    if mode.name != OFF:
        graph_sizes = batch_sizes(boot.scheduling.max_running_requests, boot.graphs.batch_sizes)
    overlap = boot.scheduling.overlap
    is_overlapped = device.type == "cuda" if overlap is None else overlap
    aux_spec = NO_HIDDEN_STATES if draft is None else draft.aux_spec
    return EngineConfig(
        boot=boot,
        target=target,
        whole_target=whole_target,
        draft=draft,
        method=method,
        context_length=_context_length(boot.model, target),
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        kernels=kernels,
        graph_mode=mode,
        graph_batch_sizes=graph_sizes,
        sizes=StepSizes.over(shapes, is_overlapped=is_overlapped),
        table=table,
        aux_spec=aux_spec,
        widths=_widths(target, draft, method),
        ranks=ranks,
    )


def _check_adapters(boot: EngineBoot, device: torch.device, target: LanguageModelConfig) -> None:
    """Raise where LoRA adapters cannot be computed; their values are read after the weights."""
    if not boot.adapters.modules and boot.adapters.root is None:
        return
    base = adapter_base(Path(boot.model.path), target, None)
    if device.type != "cpu":
        raise CannotServe(
            f"adapters.modules: LoRA adapters are computed on a CPU alone, and the engine runs on "
            f"{device}; merge the adapter into the model, or set device to cpu"
        )
    if boot.graphs.mode not in ("auto", OFF):
        raise CannotServe(
            f"adapters.modules: LoRA adapters are not computed in graphs, and graphs.mode is "
            f"{boot.graphs.mode}; set it to off"
        )
    if boot.adapters.root is not None and not Path(boot.adapters.root).is_dir():
        raise CannotServe(
            f"adapters.root: {boot.adapters.root} is not a folder; give the one below which "
            "adapters are loaded while the engine serves (--lora-root)"
        )
    for path in boot.adapters.modules.values():
        AdapterFile.open(Path(path), base).check_rank(boot.adapters.max_rank)


def _widths(
    target: LanguageModelConfig, draft: DraftConfig | None, method: DraftMethod
) -> Mapping[ForwardKind, ForwardWidths]:
    """Return the columns that each kind of forward returns."""
    if draft is None:
        return {ForwardKind.VERIFY: ForwardWidths(target.vocab_size)}
    aux_width = draft.aux_spec.width(target.decoder.hidden_size)
    verify = ForwardWidths(target.vocab_size, hidden_out=aux_width)
    return {ForwardKind.VERIFY: verify, **method.widths(draft)}


def resolve_speculation(
    speculation: SpeculationBoot, draft: DraftConfig | None
) -> tuple[SpeculationBoot, RangeTable | None]:
    """Return the draft steps at start in place of none, and the table.

    A default table ends at the draft steps that the draft can draft.

    Raises:
        CannotServe: a table or `num_steps` has more.
    """
    table = range_table(speculation.entries, speculation.policy)
    most = None if draft is None else draft.max_steps
    if table is not None and not speculation.table:
        table = table.up_to(most)
    prepared = () if table is None else table.candidates()
    steps = speculation.num_steps
    if steps is None:
        steps = _steps_at_start(speculation, draft, prepared, most)
    deepest = max((steps, *prepared))
    if most is not None and deepest > most:
        draft_name = speculation.draft_path or "the draft in the target's checkpoint"
        raise CannotServe(
            f"speculation: {deepest} draft steps are more than the {most} tokens "
            f"that {draft_name} can draft; lower num_steps and the candidate_steps of the table"
        )
    return speculation.model_copy(update={"num_steps": steps}), table


def _steps_at_start(
    speculation: SpeculationBoot,
    draft: DraftConfig | None,
    prepared: tuple[int, ...],
    most: int | None,
) -> int:
    """Return the draft steps that the draft proposes, where the table has them, or the usual."""
    proposed = min((draft and draft.proposed_draft_steps) or 0, MAX_STEPS)
    is_stated = speculation.num_draft_tokens is not None
    if proposed and not is_stated and (not prepared or proposed in prepared):
        return proposed
    return min(speculation.usual_steps, MAX_STEPS if most is None else most)


def draft_shapes(speculation: SpeculationBoot, table: RangeTable | None) -> dict[int, DraftShape]:
    """Return every draft shape that a step can use, by `num_steps`; 0 is always among them."""
    if speculation.algorithm is Algorithm.NONE:
        return {0: DraftShape.chain(0)}
    start = speculation.usual_steps
    steps_choices = {0, start, *(() if table is None else table.candidates())}
    return {
        steps: DraftShape.of(
            steps, speculation.topk, speculation.num_draft_tokens if steps == start else None
        )
        for steps in sorted(steps_choices)
    }


def _dtype(
    model: ModelBoot, target: LanguageModelConfig, device: torch.device, open_store: OpenStore
) -> torch.dtype:
    if model.dtype != "auto":
        return DTYPES[model.dtype]
    # A CPU computes 16-bit floats slowly.
    if device.type == "cpu":
        return torch.float32
    return target.dtype or stored_dtype(open_store(Path(model.path)))


def _choose_kernels(
    boot: EngineBoot,
    target: LanguageModelConfig,
    draft: DraftConfig | None,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> dict[str, Choice]:
    sums = choose_sum_order(boot.model.sum_order, device, dtype)
    models: dict[str, DraftConfig] = {"target": target}
    if draft is not None and draft.keeps_kv:
        models["draft"] = draft
    wanted = boot.attention_backend
    choices: dict[str, Choice] = {}
    # Models with like heads share the workspaces of their attention.
    heads = {name: AttentionHeads.of(model, device) for name, model in models.items()}
    by_heads: dict[AttentionHeads, Choice] = {}
    for name, one in heads.items():
        try:
            if one not in by_heads:
                layers = [
                    params for each in heads.values() if each == one for params in each.layers
                ]
                by_heads[one] = choose_backend(
                    wanted,
                    device,
                    dtype,
                    one.k_dim,
                    kv_dtype,
                    v_head_dim=one.v_dim,
                    layers=layers,
                    is_latent=one.is_latent,
                    sums=sums,
                )
            choices[name] = by_heads[one]
        except ValueError as error:
            raise AttentionUnavailable(
                f"attention_backend {wanted} cannot serve the {name}: {error}"
            ) from None
    if draft is not None:
        choices.setdefault("draft", choices["target"])  # which computes its attention
    return choices


def choose_graph_mode(
    wanted: str, device: torch.device, backends: Iterable[Backend], ranks: int = 1
) -> GraphMode:
    """Resolve graphs.mode; auto captures where that is safe and faster.

    Graphs of several ranks would contain calls of NCCL, of which it is not shown that they can be
    replayed.

    Raises:
        GraphsUnavailable: mode is cuda, and the device or a backend does not support it.
    """
    if wanted == CUDA and device.type != "cuda":
        raise GraphsUnavailable(
            f"graphs.mode cuda needs a GPU, and the engine runs on {device}; use auto or off, or "
            "static to try out a plan"
        )
    if wanted == CUDA and (capability := torch.cuda.get_device_capability(device)) < AMPERE:
        raise GraphsUnavailable(
            f"graphs.mode cuda needs compute capability 8.0, and {device_name(device)} has "
            f"{capability[0]}.{capability[1]}; use auto or off"
        )
    supports = [backend.graph_support for backend in backends]
    limitation = next((one.limitation for one in supports if one.limitation is not None), None)
    if wanted == CUDA and not all(one.is_possible for one in supports):
        raise GraphsUnavailable(
            f"graphs.mode cuda does not work with this attention_backend: {limitation}; use auto "
            "or off, or attention_backend triton"
        )
    if wanted != "auto":
        is_costly = wanted == CUDA and limitation is not None
        return GraphMode(
            wanted, "was asked for" + (f", although {limitation}" if is_costly else "")
        )
    if device.type != "cuda":
        return GraphMode(OFF, f"there are no CUDA graphs on {device}")
    if limitation is not None:
        return GraphMode(OFF, limitation)
    if ranks > 1:
        why = "graphs with calls of NCCL have not run on GPUs; graphs.mode cuda captures them"
        return GraphMode(OFF, why)
    return GraphMode(CUDA, "attention reads lengths on the device")


def _context_length(model: ModelBoot, target: LanguageModelConfig) -> int:
    length = model.context_length or target.max_position_embeddings
    trained = target.rope.trained_positions
    if length > trained:
        raise CannotServe(
            f"model.context_length {length} is more than the {trained} positions that {model.path} "
            "was trained for; lower it"
        )
    return length
