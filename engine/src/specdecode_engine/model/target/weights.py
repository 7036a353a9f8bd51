"""Which tensors a Llama-shaped checkpoint holds, under which names, and how they are read.

Maps that read the same input are fused: each part is read into its rows of one tensor, so that
loading needs no memory but that of the model and of one tensor.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape, SharedTensorError, TensorStore
from specdecode_engine.model.layers.experts import Experts, gates_first
from specdecode_engine.model.layers.layers import (
    Attention,
    AttentionT,
    DecoderLayer,
    Linear,
    Mlp,
    Norm,
    OutputNorms,
    QkNorm,
    fused_layer,
)
from specdecode_engine.model.layers.linears import (
    DividedLinear,
    Linears,
    MapKind,
    Placement,
    arranged,
    joined,
)
from specdecode_engine.model.layers.repeated_weights import repeats
from specdecode_engine.model.layers.sparse_mlp import (
    ExpertTensors,
    SharedExpert,
    SparseMlp,
    SparseMlpConfig,
)
from specdecode_engine.model.target.config import DecoderConfig
from specdecode_engine.model.target.head_order import order_heads, order_qkv
from specdecode_engine.process.start_progress import BYTES, ShowProgress, progress_bar
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_kernels import AnyWeight, AttentionParams, Backend, QuantizedTensor
from specdecode_kernels.torch.elementwise import accumulation_dtype

OUTPUT_NORMS = (
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
"""After attention, before and after the MLP, where there are norms of outputs; as in Gemma 2."""


def linear_shapes(name: str, outputs: int, inputs: int, bias: bool) -> dict[str, Shape]:
    """Name the tensors of one linear map."""
    shapes: dict[str, Shape] = {f"{name}.weight": (outputs, inputs)}
    if bias:
        shapes[f"{name}.bias"] = (outputs,)
    return shapes


def decoder_shapes(
    prefix: str,
    config: DecoderConfig,
    attention_input: int,
    *,
    input_norm: bool = True,
    sparse_mlp: SparseMlpConfig | None = None,
) -> dict[str, Shape]:
    """Name the tensors of one decoder layer whose attention reads `attention_input` features.

    Args:
        sparse_mlp: its MLP is a mixture of experts.
    """
    norms = OUTPUT_NORMS if config.has_output_norms else (config.names.mlp_norm,)
    if input_norm:
        norms = ("input_layernorm", *norms)
    hidden, mlp = config.hidden_size, f"{prefix}.mlp"
    return {
        **{f"{prefix}.{norm}.weight": (hidden,) for norm in norms},
        **_attention_shapes(f"{prefix}.self_attn", config, attention_input),
        **(sparse_mlp.shapes(mlp, hidden) if sparse_mlp else _dense_mlp_shapes(mlp, config)),
    }


def _attention_shapes(attention: str, config: DecoderConfig, inputs: int) -> dict[str, Shape]:
    if config.latent is not None:
        return config.latent.shapes(attention, inputs, config.num_attention_heads)
    q_size = config.num_attention_heads * config.head_dim * (1 + config.has_output_gate)
    k_size = config.num_key_value_heads * config.head_dim
    v_size = config.num_key_value_heads * config.v_head_dim
    read_size = config.num_attention_heads * config.v_head_dim
    heads: dict[str, Shape] = {
        f"{attention}.{part}_norm.weight": (config.head_dim,) for part in "qk"
    }
    sinks: dict[str, Shape] = {f"{attention}.{config.names.sinks}": (config.num_attention_heads,)}
    gates = linear_shapes(f"{attention}.g_proj", config.num_attention_heads, inputs, False)
    return {
        **linear_shapes(f"{attention}.q_proj", q_size, inputs, config.qkv_bias),
        **linear_shapes(f"{attention}.k_proj", k_size, inputs, config.qkv_bias),
        **linear_shapes(f"{attention}.v_proj", v_size, inputs, config.qkv_bias),
        **linear_shapes(f"{attention}.o_proj", config.hidden_size, read_size, config.output_bias),
        **(gates if config.has_head_gate else {}),
        **(heads if config.qk_norm else {}),
        **(sinks if config.sinks else {}),
    }


def _dense_mlp_shapes(prefix: str, config: DecoderConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        **linear_shapes(f"{prefix}.gate_proj", inner, hidden, config.mlp_bias),
        **linear_shapes(f"{prefix}.up_proj", inner, hidden, config.mlp_bias),
        **linear_shapes(f"{prefix}.down_proj", hidden, inner, config.mlp_bias),
    }


@dataclass(frozen=True, slots=True)
class Weights:
    """Reads the tensors of a checkpoint, each when its part of the model is made."""

    store: TensorStore
    placement: Placement
    linears: Linears
    _add: Callable[[int], None]
    must_share: Collection[AnyWeight] = ()

    @classmethod
    @contextmanager
    def of(
        cls,
        store: TensorStore,
        placement: Placement,
        linears: Linears,
        *,
        label: str,
        progress: ShowProgress | None,
        must_share: Collection[AnyWeight] = (),
    ) -> Iterator["Weights"]:
        """Read within the context.

        Args:
            must_share: loaded weights that the checkpoint must lack or repeat.
        """
        total = sum(stored.bytes for stored in store.tensors.values())
        with progress_bar(progress, label, total, BYTES) as add:
            yield cls(store, placement, linears, add, must_share)

    @property
    def ops(self) -> Backend:
        return self.linears.ops

    def __contains__(self, name: str) -> bool:
        return name in self.store.tensors

    def take(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor, or several one below the other into one.

        Args:
            dtype: of floats; by default that of the placement.
        """
        stored = [self.store.tensors[name] for name in names]
        rows, stored_dtype = [one.shape[0] for one in stored], stored[0].dtype
        floats = self.placement.dtype if dtype is None else dtype
        taken = torch.empty(
            (sum(rows), *stored[0].shape[1:]),
            dtype=floats if stored_dtype.is_floating_point else stored_dtype,
            device=self.placement.device,
        )
        for name, one, part in zip(names, stored, taken.split_with_sizes(rows), strict=True):
            self.store.read(name, part)
            self._add(one.bytes)
        return taken

    def take_map(self, *names: str, kind: MapKind = MapKind.LAYER) -> Tensor | QuantizedTensor:
        """Read the weights of linear maps one below the other, as they are stored if kept.

        A tensor with one more dimension holds the weights of all experts.
        """
        stored = [self.store.tensors[name] for name in names]
        if all(self.linears.keeps(one, kind) for one in stored):
            read = [one.quantized.read() for one in stored if one.quantized is not None]
            parts = [one for one in read if one is not None]
            if len(parts) == len(names) and (whole := joined(parts, self.placement)) is not None:
                self._add(sum(one.bytes for one in stored))
                return whole
            self.linears.note_dequantized(names)
        return self.take(*names)

    def take_or_share(self, name: str, shared: Tensor) -> Tensor:
        """Read one tensor, or return `shared` where the checkpoint lacks it or repeats it.

        A repetition takes no memory, not even while it is read.
        """
        if name not in self or self._repeats(name, shared, lambda *rows: shared[slice(*rows)]):
            return shared
        return self.take(name)

    def linear(self, *names: str, kind: MapKind = MapKind.LAYER) -> Linear:
        """Read one linear map, or several that read the same input, fused into one."""
        biases = [f"{name}.bias" for name in names if f"{name}.bias" in self]
        weight = self.take_map(*(f"{name}.weight" for name in names), kind=kind)
        return self.linears.make(weight, self.take(*biases) if biases else None, kind)

    def linear_or_share(self, name: str, shared: Linear) -> Linear:
        """Read one linear map, or return `shared` where the checkpoint lacks it or repeats it."""
        weight = f"{name}.weight"
        ranks = shared.ranks if isinstance(shared, DividedLinear) else ALONE
        if weight not in self or self._repeats(weight, shared.weight, shared.rows, ranks):
            return shared
        return self.linears.make(self.take_map(weight, kind=MapKind.HEAD), kind=MapKind.HEAD)

    def _repeats(
        self,
        name: str,
        shared: AnyWeight,
        rows_of: Callable[[int, int], Tensor],
        ranks: Ranks = ALONE,
    ) -> bool:
        """Compare a stored tensor with one that is loaded; see `repeats`.

        Raises:
            SharedTensorError: they differ, and `must_share` contains the loaded one.
        """
        stored = self.store.tensors[name]
        is_equal = repeats(self.store, name, shared, rows_of, ranks)
        if not is_equal and any(shared is one for one in self.must_share):
            fault = f"{name} differs from the target's, which the running draft uses"
            raise SharedTensorError(stored.file, fault, "replace the pod to serve this draft")
        return is_equal

    def norm(self, name: str, config: DecoderConfig) -> Norm:
        """Read one norm; 1 plus a weight of 16 bits is kept in float32, which holds it exactly."""
        weight = self.take(f"{name}.weight")
        if config.is_norm_weight_less_one:
            weight = weight.to(accumulation_dtype(weight.dtype)) + 1
        return Norm(self.ops, weight, config.rms_norm_eps)

    def decoder_layer(
        self,
        prefix: str,
        config: DecoderConfig,
        window: int | None = None,
        sparse_mlp: SparseMlpConfig | None = None,
        ranks: Ranks = ALONE,
    ) -> DecoderLayer[Attention]:
        """Read one decoder layer, without a norm before attention if there is none left.

        Args:
            window: how many positions a row sees, its own included; None: all.
            sparse_mlp: its MLP is a mixture of experts.
            ranks: that have parts of the layer; the checkpoint has this one's.
        """
        attention = self.attention(f"{prefix}.self_attn", config, window)
        layer = self.layer_around(attention, prefix, config, sparse_mlp)
        return fused_layer(layer) if ranks.size == 1 else replace(layer, ranks=ranks)

    def layer_around(
        self, attention: AttentionT, prefix: str, config: DecoderConfig, mlp: SparseMlpConfig | None
    ) -> DecoderLayer[AttentionT]:
        """Read what a decoder layer has besides attention; see `decoder_layer`."""
        before = f"{prefix}.input_layernorm"
        output_norms, mlp_norm = None, config.names.mlp_norm
        if config.has_output_norms:
            after_attention, mlp_norm, after_mlp = OUTPUT_NORMS
            output_norms = OutputNorms(
                attention=self.norm(f"{prefix}.{after_attention}", config),
                mlp=self.norm(f"{prefix}.{after_mlp}", config),
            )
        return DecoderLayer(
            input_norm=self.norm(before, config) if f"{before}.weight" in self else None,
            attention=attention,
            mlp_norm=self.norm(f"{prefix}.{mlp_norm}", config),
            output_norms=output_norms,
            mlp=self.sparse_mlp(f"{prefix}.mlp", mlp) if mlp else self.mlp(f"{prefix}.mlp", config),
        )

    def attention(self, prefix: str, config: DecoderConfig, window: int | None = None) -> Attention:
        """Read attention, with q, k and v fused."""
        return Attention(
            ops=self.ops,
            qkv=self._qkv(prefix, config),
            output=self.linear(f"{prefix}.o_proj"),
            qk_norm=self.qk_norm(prefix, config) if config.qk_norm else None,
            q_heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            params=AttentionParams(
                scale=config.attention_scale,
                logit_softcap=config.attention_softcap,
                sliding_window=window,
                sinks=self.take(f"{prefix}.{config.names.sinks}").float() if config.sinks else None,
            ),
            gate_dim=config.head_dim if config.has_output_gate else int(config.has_head_gate),
            v_head_dim=config.own_v_head_dim,
            value_scale=config.value_scale,
        )

    def _qkv(self, prefix: str, config: DecoderConfig) -> Linear:
        names = [f"{prefix}.{part}_proj" for part in ("qkvg" if config.has_head_gate else "qkv")]
        if config.rotary_dim is None and not config.has_output_gate:
            return self.linear(*names)
        order = partial(order_qkv, config=config)
        weight = arranged(self.take_map(*(f"{name}.weight" for name in names)), order)
        if not config.qkv_bias:
            return self.linears.make(weight)
        bias = order_qkv(self.take(*(f"{name}.bias" for name in names)), config)
        return self.linears.make(weight, bias)

    def qk_norm(self, prefix: str, config: DecoderConfig) -> QkNorm:
        """Read the norms of query and key heads."""
        q, k = (self.norm(f"{prefix}.{part}_norm", config) for part in "qk")
        if config.rotary_dim is not None:
            q, k = (
                replace(one, weight=order_heads(one.weight, config.head_dim, config.rotary_dim))
                for one in (q, k)
            )
        return QkNorm(q, k)

    def mlp(self, prefix: str, config: DecoderConfig) -> Mlp:
        """Read the gated MLP, with gate and up fused."""
        is_gelu = config.activation == "gelu_tanh"
        return Mlp(
            activate=self.ops.gelu_tanh_and_mul if is_gelu else self.ops.silu_and_mul,
            gate_up=self.linear(f"{prefix}.gate_proj", f"{prefix}.up_proj"),
            down=self.linear(f"{prefix}.down_proj"),
        )

    def sparse_mlp(self, prefix: str, config: SparseMlpConfig) -> SparseMlp:
        """Read a mixture of experts, with the weights of all experts in one tensor."""
        return SparseMlp(
            router=self.linear(config.router_name(prefix), kind=MapKind.ROUTER),
            routing=config.routing,
            experts=self._experts(prefix, config),
            correction_bias=self.take(config.correction_name(prefix), dtype=torch.float32)
            if config.has_correction_bias
            else None,
            shared_expert=self._shared_expert(prefix, config),
        )

    def _shared_expert(self, prefix: str, config: SparseMlpConfig) -> SharedExpert | None:
        shared = config.shared_expert
        if shared is None:
            return None
        name = f"{prefix}.{shared.name}"
        mlp = Mlp(
            activate=self.ops.silu_and_mul,
            gate_up=self.linear(f"{name}.gate_proj", f"{name}.up_proj"),
            down=self.linear(f"{name}.down_proj"),
        )
        gate = self.linear(f"{name}_gate", kind=MapKind.ROUTER) if shared.is_gated else None
        return SharedExpert(mlp, gate)

    def _experts(self, prefix: str, config: SparseMlpConfig) -> Experts:
        name = f"{prefix}.experts"
        if config.tensors is ExpertTensors.STACKED:
            return self._stacked_experts(name, config)
        if not config.is_fused:
            return self._separate_experts(prefix, config)
        gate_up, down = (
            self.take_map(f"{name}.{part}", kind=MapKind.EXPERTS)
            for part in ("gate_up_proj", "down_proj")
        )
        return Experts.make(self.linears, gate_up, down, config.activation)

    def _separate_experts(self, prefix: str, config: SparseMlpConfig) -> Experts:
        gate_up_names = chain.from_iterable(config.gate_up_names(prefix))
        gate_up = self.take_map(*gate_up_names, kind=MapKind.EXPERTS)
        down = self.take_map(*config.down_names(prefix), kind=MapKind.EXPERTS)

        def by_expert(rows: Tensor) -> Tensor:
            return rows.view(config.num_experts, -1, rows.shape[1])

        gate_up, down = arranged(gate_up, by_expert), arranged(down, by_expert)
        return Experts.make(self.linears, gate_up, down, config.activation)

    def _take_stacked(self, name: str) -> Tensor | QuantizedTensor:
        """Read a tensor [experts, inputs, outputs] as [experts, outputs, inputs]."""
        quantized = self.store.tensors[name].quantized
        is_kept = quantized is not None and quantized.is_transposed
        taken = self.take_map(name, kind=MapKind.EXPERTS) if is_kept else self.take(name)
        return taken.mT.contiguous() if isinstance(taken, Tensor) else taken

    def _stacked_experts(self, prefix: str, config: SparseMlpConfig) -> Experts:
        return Experts.make(
            self.linears,
            arranged(self._take_stacked(f"{prefix}.gate_up_proj"), gates_first),
            self._take_stacked(f"{prefix}.down_proj"),
            config.activation,
            gate_up_bias=gates_first(self.take(f"{prefix}.gate_up_proj_bias")),
            down_bias=self.take(f"{prefix}.down_proj_bias"),
        )
