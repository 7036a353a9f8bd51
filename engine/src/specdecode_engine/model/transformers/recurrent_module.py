"""What recurrent layers of transformers' models have in common: a number, and states."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_engine.model.transformers.attention import ForwardState
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_kernels import DeltaParams


class RecurrentModule(RowModule):
    """Replaces a whole recurrent layer; mixes its rows with the states of their requests.

    `layer` counts the recurrent layers of the network; their parameters are those of
    `stack_params` from then on.
    """

    def __init__(self, params: DeltaParams, state: ForwardState) -> None:
        super().__init__()
        self.params = params
        self.state = state
        self.layer = 0

    def mix(self, u: Tensor, gates: Tensor) -> Tensor:
        """See `Backend.gated_delta`."""
        assert self.state.delta is not None
        return self.state.delta.mix(self.layer, u, gates)


def stack_params(modules: Iterable[nn.Module]) -> DeltaParams | None:
    """Number the recurrent layers among modules, and put their parameters together.

    Raises:
        UnsupportedModel: their shapes differ.
    """
    nets = [module for module in modules if isinstance(module, RecurrentModule)]
    if not nets:
        return None
    own = [net.params for net in nets]
    shapes = {(one.shape, one.conv_bias is None) for one in own}
    if len(shapes) > 1:
        raise UnsupportedModel(
            f"recurrent layers have {len(shapes)} different shapes; this model type is not "
            "supported"
        )
    biases = [one.conv_bias for one in own if one.conv_bias is not None]
    params = DeltaParams(
        own[0].shape,
        torch.cat([one.conv for one in own]),
        torch.cat([one.decay for one in own]),
        torch.cat([one.dt_bias for one in own]),
        torch.cat(biases) if biases else None,
    )
    for layer, net in enumerate(nets):
        net.layer, net.params = layer, params
    return params
