"""Gated delta nets of transformers' models (Qwen3-Next, Qwen3.5), over the states of requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.target.sharding import Pieces
from specdecode_engine.model.transformers.attention import ForwardState
from specdecode_engine.model.transformers.recognition import (
    computes,
    norm_eps,
    random_linear,
    random_tensor,
    with_children,
    with_random_parameters,
)
from specdecode_engine.model.transformers.recurrent_module import RecurrentModule
from specdecode_kernels import TORCH, Backend, DeltaParams, DeltaRows, DeltaShape, DeltaState
from specdecode_kernels.torch.elementwise import accumulation_dtype

OUT_PROJ, NORM, CONV = "out_proj", "norm", "conv1d"
SEPARATE = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
"""Maps of Qwen3.5; those of Qwen3-Next have the outputs of one k head next to each other."""
BY_HEAD = ("in_proj_qkvz", "in_proj_ba")

_WIDTH, _ROWS = 8, 5


@dataclass(frozen=True, slots=True)
class GatedDeltaForm:
    """What a gated delta net computes: its heads, and the maps of its input one below the other.

    `orders` has, for maps whose outputs are not first those of q, k and v, then of the gate z, then
    beta and g, the order in which they are.
    """

    shape: DeltaShape
    inputs: tuple[str, ...]
    orders: Mapping[str, Tensor]  # [outputs] i64
    eps: float

    @property
    def widths(self) -> list[int]:
        """Outputs of the maps: inputs of the convolution, z, and the gates."""
        shape = self.shape
        return [shape.channels, shape.v_heads * shape.v_dim, 2 * shape.v_heads]

    def pieces(self, own: DeltaShape) -> dict[str, Pieces]:
        """Return, of the children that have q, k and v of all heads one after the other, the sizes
        of the three, of which a rank with the heads `own` has a share each.
        """
        whole = self.shape
        keys = whole.k_heads * whole.k_dim, own.k_heads * own.k_dim
        values = whole.v_heads * whole.v_dim, own.v_heads * own.v_dim
        names = (CONV, SEPARATE[0]) if self.inputs is SEPARATE else (CONV,)
        return dict.fromkeys(names, (keys, keys, values))


def recognise_delta_net(module: nn.Module) -> GatedDeltaForm | None:
    """Return what a module computes if it is a gated delta net, None for any other."""
    form = _form(module)
    if form is None:
        return None
    children = dict(module.named_children())
    widths = {name: getattr(children[name], "out_features", 0) for name in form.inputs}
    probe = with_children(
        with_random_parameters(module),
        {
            **{name: random_linear(_WIDTH, width, seed=1) for name, width in widths.items()},
            OUT_PROJ: random_linear(form.widths[1], _WIDTH, seed=2),
            NORM: with_random_parameters(children[NORM], seed=3),
            CONV: with_random_parameters(children[CONV], seed=4),
        },
    )
    rows = random_tensor(_ROWS, _WIDTH)
    return form if computes(probe, rows, partial(_compute, probe, form)) else None


def _form(module: nn.Module) -> GatedDeltaForm | None:
    """Read the form off the names of a module's children and the sizes that it has."""
    names = {name for name, _ in module.named_children()}
    inputs = next(
        (one for one in (SEPARATE, BY_HEAD) if names == {*one, OUT_PROJ, NORM, CONV}), None
    )
    sizes = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel_size")
    found = [size for name in sizes if isinstance(size := getattr(module, name, None), int)]
    if inputs is None or len(found) < len(sizes):
        return None
    eps = norm_eps(module.get_submodule(NORM))
    if eps is None or getattr(module.get_submodule(CONV), "bias", None) is not None:
        return None
    orders = {} if inputs is SEPARATE else _orders(module)
    k_heads, v_heads, k_dim, v_dim, conv_width = found
    shape = DeltaShape(k_heads, v_heads, k_dim, v_dim, conv_width)
    return GatedDeltaForm(shape, inputs, orders, eps)


def _orders(module: Any) -> dict[str, Tensor]:
    """Let a module of Qwen3-Next sort the numbers of its outputs."""
    mixed = [torch.arange(getattr(module, name).out_features)[None, None] for name in BY_HEAD]
    q, k, v, z, b, a = (one.flatten() for one in module.fix_query_key_value_ordering(*mixed))
    return {BY_HEAD[0]: torch.cat([q, k, v, z]), BY_HEAD[1]: torch.cat([b, a])}


def _compute(module: nn.Module, form: GatedDeltaForm, rows: Tensor) -> Tensor:
    """Compute a module as `RowGatedDeltaNet` does, of one text from its start."""
    mapped = []
    for name in form.inputs:
        outputs = module.get_submodule(name)(rows)
        order = form.orders.get(name)
        mapped.append(outputs if order is None else outputs[:, order])
    u, z, gates = torch.cat(mapped, dim=1).split_with_sizes(form.widths, dim=1)
    params, shape = read_params(module, form.shape), form.shape
    matrix = rows.new_zeros(1, 1, shape.v_heads, shape.k_dim, shape.v_dim)
    inputs = rows.new_zeros(1, 1, shape.conv_width - 1, shape.channels)
    state = DeltaState(inputs, matrix, inputs[:, :, :0], inputs[:, :, :0])
    starts, slots = torch.tensor([0, len(rows)]), torch.zeros(len(rows), dtype=torch.int64)
    y = TORCH.gated_delta(u, gates, params, state, 0, DeltaRows(slots, starts, 1, 1))
    weight: Any = module.get_submodule(NORM).weight
    return module.get_submodule(OUT_PROJ)(_gated(TORCH, y, z, weight, form.eps))  # type: ignore[no-any-return]


def _gated(ops: Backend, y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm every head of y [rows, v_heads, v_dim], times silu of z [rows, v_heads * v_dim]."""
    return ops.silu_and_mul(z, ops.rms_norm(y, weight, eps).flatten(1))


def read_params(module: nn.Module, shape: DeltaShape) -> DeltaParams:
    """Return the parameters of one layer, those of a convolution and of the gates."""
    parameters: Any = module._parameters
    conv: Any = module.get_submodule(CONV).weight
    wide = accumulation_dtype(conv.dtype)
    one_layer = (conv.squeeze(1).t(), parameters["A_log"].to(wide).exp(), parameters["dt_bias"])
    return DeltaParams(shape, *(one.detach().to(wide)[None].contiguous() for one in one_layer))


class RowGatedDeltaNet(RecurrentModule):
    """Computes what `recognise_delta_net` found."""

    def __init__(
        self,
        ops: Backend,
        form: GatedDeltaForm,
        module: nn.Module,
        maps: tuple[Linear, Linear],
        state: ForwardState,
    ) -> None:
        super().__init__(read_params(module, form.shape), state)
        self.ops = ops
        self.widths, self.eps = form.widths, form.eps
        norm: Any = module.get_submodule(NORM)
        self.norm_weight = norm.weight.detach()
        self.inputs, self.output = maps

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        """Map hidden states [1, rows, inputs] to [1, rows, outputs]."""
        mapped = self.inputs(hidden_states.squeeze(0))
        u, z, gates = mapped.split_with_sizes(self.widths, dim=1)
        y = self.mix(u, gates)
        return self.output(_gated(self.ops, y, z, self.norm_weight, self.eps)).unsqueeze(0)
