"""Short convolutions of transformers' models (LFM2), over the states of requests."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.transformers.attention import ForwardState
from specdecode_engine.model.transformers.recognition import (
    computes,
    random_linear,
    random_tensor,
    with_children,
    with_random_parameters,
)
from specdecode_engine.model.transformers.recurrent_module import RecurrentModule
from specdecode_kernels import TORCH, DeltaParams, DeltaRows, DeltaShape, DeltaState
from specdecode_kernels.torch.elementwise import accumulation_dtype

IN_PROJ, CONV, OUT_PROJ = "in_proj", "conv", "out_proj"

_WIDTH, _ROWS = 8, 5


@dataclass(frozen=True, slots=True)
class ConvolutionForm:
    """A map to b, c and x of all channels; a convolution of b * x, times c; and a map."""

    shape: DeltaShape


def recognise_convolution(module: nn.Module) -> ConvolutionForm | None:
    """Return what a module computes if it is a short convolution, None for any other."""
    form = _form(module)
    if form is None:
        return None
    channels = form.shape.channels
    probe = with_children(
        module,
        {
            IN_PROJ: random_linear(_WIDTH, 3 * channels, seed=1),
            OUT_PROJ: random_linear(channels, _WIDTH, seed=2),
            CONV: with_random_parameters(module.get_submodule(CONV), seed=3),
        },
    )
    rows = random_tensor(_ROWS, _WIDTH)
    return form if computes(probe, rows, partial(_compute, probe, form)) else None


def _form(module: nn.Module) -> ConvolutionForm | None:
    if {name for name, _ in module.named_children()} != {IN_PROJ, CONV, OUT_PROJ}:
        return None
    conv = module.get_submodule(CONV)
    if type(conv) is not nn.Conv1d or conv.groups != conv.in_channels:
        return None
    return ConvolutionForm(DeltaShape.of_convolution(conv.in_channels, conv.kernel_size[0]))


def _compute(module: nn.Module, form: ConvolutionForm, rows: Tensor) -> Tensor:
    """Compute a module as `RowConvolution` does, of one text from its start."""
    shape = form.shape
    b, c, x = module.get_submodule(IN_PROJ)(rows).chunk(3, dim=1)
    inputs = rows.new_zeros(1, 1, shape.conv_width - 1, shape.channels)
    matrix = rows.new_zeros(1, 1, 1, 0, shape.channels)
    nothing = rows.new_zeros(len(rows), 0)
    state = DeltaState(inputs, matrix, inputs[:, :, :0], nothing[None, :1, None, :][:, :, :0])
    starts, slots = torch.tensor([0, len(rows)]), torch.zeros(len(rows), dtype=torch.int64)
    own = DeltaRows(slots, starts, 1, 1)
    y = TORCH.gated_delta(b * x, nothing, read_params(module, shape), state, 0, own)
    return module.get_submodule(OUT_PROJ)(c * y[:, 0])  # type: ignore[no-any-return]


def read_params(module: nn.Module, shape: DeltaShape) -> DeltaParams:
    """Return the parameters of one layer."""
    conv: Any = module.get_submodule(CONV)
    wide = accumulation_dtype(conv.weight.dtype)
    weight = conv.weight.detach().squeeze(1).t().to(wide)[None].contiguous()
    bias = None if conv.bias is None else conv.bias.detach().to(wide)[None].contiguous()
    unused = weight.new_zeros(1, shape.v_heads)
    return DeltaParams(shape, weight, unused, unused, bias)


class RowConvolution(RecurrentModule):
    """Computes what `recognise_convolution` found."""

    def __init__(
        self,
        form: ConvolutionForm,
        module: nn.Module,
        maps: tuple[Linear, Linear],
        state: ForwardState,
    ) -> None:
        super().__init__(read_params(module, form.shape), state)
        self.inputs, self.output = maps

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        """Map hidden states [1, rows, inputs] to [1, rows, outputs]."""
        b, c, x = self.inputs(hidden_states.squeeze(0)).chunk(3, dim=1)
        y = self.mix(b * x, b[:, :0])
        return self.output(c * y[:, 0]).unsqueeze(0)
