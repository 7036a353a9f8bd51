"""A language model computed by transformers' modules: ids in, hidden states and logits out."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.checkpoint.quantized.store import open_tensors
from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.experts import Experts
from specdecode_engine.model.layers.layers import Linear, widened
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.layers.rope import make_rotary_limits
from specdecode_engine.model.target.config import EMBEDDED, NO_HIDDEN_STATES, AuxHiddenStates
from specdecode_engine.model.target.language_model import LanguageModel, NeededRows
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers.attention import ForwardState, attach
from specdecode_engine.model.transformers.division import DividedModules, Division
from specdecode_engine.model.transformers.left_parts import report_left
from specdecode_engine.model.transformers.loading import (
    check_tensors,
    load_network,
    make_network,
    text_tensors,
)
from specdecode_engine.model.transformers.mixture_modules import RowExperts, RowInputScaledMixture
from specdecode_engine.model.transformers.modules import RowLinear, RowSoftcap
from specdecode_engine.model.transformers.recurrent_module import stack_params
from specdecode_engine.model.transformers.replacement import Replacer
from specdecode_engine.model.transformers.row_audit import ProbeView, RowAudit
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_kernels import DeltaParams

SOFTCAP = "final_logit_softcapping"
AUDITED_POSITIONS = 256  # of rotary tables, where all texts have the same


class _Outputs:
    """The outputs of a base model as its head reads them: nothing but hidden states."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, _: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor:
        """Return the first output, for heads that read it by its place."""
        return (self.last_hidden_state,)[index]


class _ReadyHiddenStates(nn.Module):
    """Stands for the base model where its output is known."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _Outputs:
        return _Outputs(inputs_embeds)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TransformersModel(LanguageModel):
    """A model computed by transformers' modules, with our attention and ops in their place."""

    config: TransformersConfig
    network: nn.Module  # the model without its head
    scorer: nn.Module | None  # the head and what the model computes after it; None: nothing
    softcap: RowSoftcap | None  # of logits
    _state: ForwardState
    _layers: nn.ModuleList
    _collected: dict[int, Tensor]  # outputs of hooked layers in the current forward
    _hooked: set[int]  # layers whose outputs an aux spec has selected
    _delta_params: DeltaParams | None  # of the recurrent layers

    @classmethod
    def load(
        cls,
        config: TransformersConfig,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device,
        context_length: int | None = None,
        linears: Linears | None = None,
        ranks: Ranks = ALONE,
    ) -> "TransformersModel":
        """Load a checkpoint, by default in its own type and for its own length.

        Args:
            config: of the whole model.
            linears: makes the linear maps; by default their weights stay plain.
            ranks: among which the model is divided; the part of this one is loaded.

        Raises:
            CheckpointError: tensors are missing or do not fit, or the model type is not supported,
                or not by so many ranks.
        """
        dtype = dtype or config.dtype or torch.float32
        opened = open_tensors(config.folder, config.quantization)
        store, skipped = text_tensors(config, opened)
        network = make_network(config, dtype)
        used = check_tensors(network, store)
        own, division = config, None
        if ranks.size > 1:
            division = Division.of(config, network, dtype, ranks.size)
            own, store = division.config, division.store(store, ranks)
        cls.audited(config, network)
        loaded = load_network(own, dtype, device, store, used)
        model = cls.of_network(
            own,
            loaded,
            context_length or config.max_position_embeddings,
            linears=linears,
            skipped_tensors=skipped,
            division=division,
            ranks=ranks,
        )
        model._compute_two_rows()  # attention reads its parameters before a CUDA graph is captured
        return model

    @classmethod
    def audited(
        cls, config: TransformersConfig, network: Any, linears: Linears | None = None
    ) -> "TransformersModel":
        """Make a model of a network on the meta device, and prove that its rows are independent.

        The ops are those of every device; see `row_audit`.

        Raises:
            UnsupportedModel: the model cannot be computed over pages, or its rows depend on their
                batch.
        """
        length = config.max_position_embeddings
        if len(make_rotary_limits(config.ropes, length).limits) == 1:
            length = AUDITED_POSITIONS
        audit = RowAudit()
        try:
            model = cls.of_network(config, network, length, linears=linears)
            model._compute_two_rows(audit)
        except CheckpointError:
            raise
        except Exception as error:  # config.json may be anything, and modules fail in any way
            audit.check(config.model_type)
            raise UnsupportedModel(
                f"{config.folder}: model type {config.model_type} cannot be computed over pages "
                f"({error!r}); correct config.json, or use another model type"
            ) from error
        audit.check(config.model_type)
        return model

    @classmethod
    def of_network(
        cls,
        config: TransformersConfig,
        whole: Any,
        length: int,
        *,
        linears: Linears | None = None,
        skipped_tensors: tuple[str, ...] = (),
        division: Division | None = None,
        ranks: Ranks = ALONE,
    ) -> "TransformersModel":
        """Put our attention and ops into transformers' model.

        Args:
            length: tokens of the longest text.
            division: what a rank has of the model, of which `whole` is the part.

        Raises:
            UnsupportedModel: the model has not the parts of a decoder.
        """
        weight = whole.get_input_embeddings().weight
        dtype, device = weight.dtype, weight.device
        state = ForwardState()
        attach(whole, state, config.layer_map)
        embedding = whole.get_input_embeddings().weight.detach()
        limits = make_rotary_limits(config.ropes, length)
        scores = whole.get_output_embeddings()
        linears, parts = linears or Linears(), DividedModules.of(division, whole, ranks)
        replacer = Replacer(linears, dtype, device, limits, state, scores, parts)
        replacer.replace_children(whole)
        base = whole.get_submodule(_base_name(whole))
        head = whole.get_output_embeddings()
        if not isinstance(head, RowLinear):
            raise UnsupportedModel(
                f"model type {config.model_type} has no linear head; it is not supported"
            )
        scorer, softcap = _without_base(whole)
        layers = _decoder_layers(base, config)
        if division is None:
            report_left(config.model_type, layers)
        return cls(
            config=config,
            network=base,
            scorer=None if _is_plain(scorer, head.linear, embedding) else scorer,
            softcap=softcap,
            embedding=embedding,
            head=head.linear,
            rotary_limits=limits,
            skipped_tensors=skipped_tensors,
            _state=state,
            _layers=layers,
            _collected={},
            _hooked=set(),
            _delta_params=_stacked(base, config),
        )

    def _compute_two_rows(self, audit: RowAudit | None = None) -> None:
        """Compute a forward without keys and values, each layer compared with the layer map."""
        rows = torch.zeros(2, dtype=torch.int64, device=self.device)
        view = ProbeView(self.config.layer_map, self.config.delta_layers)
        with nullcontext() if audit is None else audit.watching(self.network):
            hidden, _ = self.forward(rows, rows, view)
        if self.scorer is not None:
            with nullcontext() if audit is None else audit.watching(self.scorer):
                self.logits(hidden)

    @property
    def delta_params(self) -> DeltaParams | None:
        return self._delta_params

    @property
    def mixtures(self) -> tuple[Experts, ...]:
        kinds = RowExperts | RowInputScaledMixture
        return tuple(m.experts for m in self._layers.modules() if isinstance(m, kinds))

    def embed(self, ids: Tensor) -> Tensor:
        network: Any = self.network
        with torch.no_grad():
            embedded: Tensor = network.get_input_embeddings()(ids[None])[0]
        return embedded

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        kv: KVView,
        aux_spec: AuxHiddenStates = NO_HIDDEN_STATES,
        needed: NeededRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        for number in set(aux_spec.layers) - self._hooked:
            self._collect_output_of(number)
        self._state.view = kv
        self._state.delta = kv.delta if isinstance(kv, PagedView | ProbeView) else None
        try:
            with torch.no_grad():
                outputs = self.network(
                    input_ids=ids[None], position_ids=positions[None], use_cache=False
                )
            normed: Tensor = outputs.last_hidden_state[0]
            if aux_spec.final:
                return normed, normed
            hidden = normed if needed is None else normed[needed.rows]
            return hidden, self._aux_hidden_states(aux_spec)
        finally:
            self._state.view = self._state.delta = None
            self._collected.clear()

    def _collect_output_of(self, number: int) -> None:
        """Hook a layer; a module without hooks is called faster."""
        if not EMBEDDED <= number < len(self._layers):
            last = len(self._layers) - 1
            raise ValueError(f"aux layer is {number}; the model has layers 0..{last}")

        def hook(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
            self._collected[number] = output if isinstance(output, Tensor) else output[0]

        def hook_input(
            module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
        ) -> None:
            self._collected[number] = inputs[0] if inputs else named["hidden_states"]

        if number == EMBEDDED:
            self._layers[0].register_forward_pre_hook(hook_input, with_kwargs=True)
        else:
            self._layers[number].register_forward_hook(hook)
        self._hooked.add(number)

    def _aux_hidden_states(self, aux_spec: AuxHiddenStates) -> Tensor | None:
        if not aux_spec.layers:
            return None
        return torch.cat([self._collected[layer][0] for layer in aux_spec.layers], dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self._scores(hidden)
        return logits if self.softcap is None else self.softcap(widened(logits))

    def _scores(self, hidden: Tensor) -> Tensor:
        return self.head(hidden) if self.scorer is None else _compute(self.scorer, hidden)


def _compute(scorer: nn.Module, hidden: Tensor) -> Tensor:
    scores: Tensor = scorer(inputs_embeds=hidden[None]).logits[0]
    return scores


def _is_plain(scorer: nn.Module, head: Linear, embedding: Tensor) -> bool:
    """Whether a model computes nothing after its head; calling the head alone takes less time."""
    if embedding.is_meta:
        return False
    inputs = head.weight.shape[1]
    drawn = torch.randn(2, inputs, generator=torch.Generator().manual_seed(0))
    rows = drawn.to(embedding)
    with torch.no_grad():
        try:
            return torch.equal(_compute(scorer, rows), head(rows))
        except (RuntimeError, TypeError, AttributeError, KeyError, IndexError):
            return False  # reported by the forward that proves the rows


def _without_base(whole: Any) -> tuple[nn.Module, RowSoftcap | None]:
    """Copy a model so that its forward takes hidden states; the head is the same module.

    What it computes after the head stays as it is, except for a softcap of the logits, which is
    returned: its tanh would depend on the batch.
    """
    scorer: Any = copy.copy(whole)
    scorer._modules = {**whole._modules, _base_name(whole): _ReadyHiddenStates()}
    cap = getattr(whole.config, SOFTCAP, None)
    if cap is None:
        return scorer, None
    scorer.config = copy.copy(whole.config)
    scorer.config.__dict__[SOFTCAP] = None  # some types check what is set
    softcap = RowSoftcap(cap)
    scorer._modules["softcap"] = softcap
    return scorer, softcap


def _stacked(base: nn.Module, config: TransformersConfig) -> DeltaParams | None:
    """Return the parameters of the recurrent layers that config.json describes."""
    params, layers = stack_params(base.modules()), config.delta_layers
    found = None
    if params is not None:
        found = DeltaLayers(len(params.conv), params.shape, params.conv_bias is not None)
    if found != layers:
        raise UnsupportedModel(
            f"model type {config.model_type} has, of known recurrent layers, {found or 'none'} "
            f"where config.json describes {layers}; it is not supported"
        )
    return params


def _base_name(whole: Any) -> str:
    """Name the child without the head; Llama 4's prefix is that of a larger model."""
    prefix: str = whole.base_model_prefix
    return prefix if prefix in whole._modules else "model"


def _decoder_layers(base: nn.Module, config: TransformersConfig) -> nn.ModuleList:
    for child in base.children():
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers:
            return child
    raise UnsupportedModel(
        f"model type {config.model_type} has no list of {config.num_hidden_layers} decoder layers; "
        "it is not supported"
    )
