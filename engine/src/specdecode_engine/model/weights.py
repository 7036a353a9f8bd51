"""Which tensors a Llama-shaped checkpoint holds, under which names, and how they are taken."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint import Shape
from specdecode_engine.model.config import DecoderConfig
from specdecode_engine.model.layers import Attention, DecoderLayer, Linear, Linears, Mlp, Norm
from specdecode_kernels import Backend


def linear_shapes(name: str, outputs: int, inputs: int, bias: bool) -> dict[str, Shape]:
    """Name the tensors of one linear map."""
    shapes: dict[str, Shape] = {f"{name}.weight": (outputs, inputs)}
    if bias:
        shapes[f"{name}.bias"] = (outputs,)
    return shapes


def decoder_shapes(
    prefix: str, config: DecoderConfig, attention_input: int, *, input_norm: bool = True
) -> dict[str, Shape]:
    """Name the tensors of one decoder layer whose attention reads `attention_input` features."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    before: dict[str, Shape] = {f"{prefix}.input_layernorm.weight": (hidden,)}
    return {
        **(before if input_norm else {}),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
        **linear_shapes(f"{attention}.q_proj", q_size, attention_input, config.qkv_bias),
        **linear_shapes(f"{attention}.k_proj", kv_size, attention_input, config.qkv_bias),
        **linear_shapes(f"{attention}.v_proj", kv_size, attention_input, config.qkv_bias),
        **linear_shapes(f"{attention}.o_proj", hidden, q_size, config.output_bias),
        **linear_shapes(f"{mlp}.gate_proj", inner, hidden, config.mlp_bias),
        **linear_shapes(f"{mlp}.up_proj", inner, hidden, config.mlp_bias),
        **linear_shapes(f"{mlp}.down_proj", hidden, inner, config.mlp_bias),
    }


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a checkpoint on their way into a model; each is taken once, then forgotten.

    The loader owns `tensors` and empties it, so that fused copies never double the whole model.
    """

    tensors: dict[str, Tensor]
    linears: Linears

    @property
    def ops(self) -> Backend:
        return self.linears.ops

    def take(self, name: str) -> Tensor:
        return self.tensors.pop(name)

    def take_or_share(self, name: str, shared: Tensor) -> Tensor:
        """Hand over one tensor, or `shared` where the checkpoint lacks it or repeats it."""
        own = self.tensors.pop(name, shared)
        return shared if own.shape == shared.shape and torch.equal(own, shared) else own

    def linear(self, *names: str) -> Linear:
        """Hand over one linear map, or several that read the same input, fused into one."""
        weights = [self.take(f"{name}.weight") for name in names]
        biases = [self.take(f"{n}.bias") for n in names if f"{n}.bias" in self.tensors]
        return self.linears.make(_joined(weights), _joined(biases) if biases else None)

    def linear_or_share(self, name: str, shared: Linear) -> Linear:
        """Hand over one linear map, or `shared` where the checkpoint lacks it or repeats it."""
        own = self.tensors.pop(f"{name}.weight", None)
        if own is None or (
            own.shape == shared.weight.shape and torch.equal(own, shared.plain_weight())
        ):
            return shared
        return self.linears.make(own)

    def norm(self, name: str, config: DecoderConfig) -> Norm:
        return Norm(self.ops, self.take(f"{name}.weight"), config.rms_norm_eps)

    def decoder_layer(self, prefix: str, config: DecoderConfig) -> DecoderLayer:
        """Hand over one decoder layer, without a norm before attention if there is none left."""
        before = f"{prefix}.input_layernorm"
        return DecoderLayer(
            input_norm=self.norm(before, config) if f"{before}.weight" in self.tensors else None,
            attention=self.attention(f"{prefix}.self_attn", config),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm", config),
            mlp=self.mlp(f"{prefix}.mlp"),
        )

    def attention(self, prefix: str, config: DecoderConfig) -> Attention:
        """Hand over attention, with q, k and v fused."""
        return Attention(
            ops=self.ops,
            qkv=self.linear(*(f"{prefix}.{part}_proj" for part in "qkv")),
            output=self.linear(f"{prefix}.o_proj"),
            q_heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
        )

    def mlp(self, prefix: str) -> Mlp:
        """Hand over the gated MLP, with gate and up fused."""
        return Mlp(
            ops=self.ops,
            gate_up=self.linear(f"{prefix}.gate_proj", f"{prefix}.up_proj"),
            down=self.linear(f"{prefix}.down_proj"),
        )


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def tensor_bytes(record: object) -> int:
    """Return the bytes of all tensors in a record of records, each storage counted once."""
    storages = [tensor.untyped_storage() for tensor in _tensors(record)]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def _tensors(record: object) -> Iterator[Tensor]:
    if isinstance(record, Tensor):
        yield record
    elif isinstance(record, tuple | list):
        for item in record:
            yield from _tensors(item)
    elif is_dataclass(record):
        for field in fields(record):
            yield from _tensors(getattr(record, field.name))
