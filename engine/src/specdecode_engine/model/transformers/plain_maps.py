"""Linear maps of transformers' modules before they are packed: in other orders, cut and joined."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specdecode_engine.model.target.head_order import halves_of_pairs, halves_of_part
from specdecode_engine.model.transformers.attention_form import INPUTS, AttentionForm, Rotation
from specdecode_engine.model.transformers.modules import RowModule, RowRmsNorm


def order_of_halves(form: AttentionForm) -> Tensor | None:
    """Return the order of a head's numbers in which halves turn; None where it is theirs."""
    if form.rotation is Rotation.PAIRS:
        return halves_of_pairs(form.head_dim)
    if form.rotation is Rotation.HALVES and form.rotated < form.head_dim:
        return halves_of_part(form.head_dim, form.rotated)
    return None


def can_sort_heads(norms: Sequence[RowModule], form: AttentionForm) -> bool:
    """Whether heads can be sorted: a norm has no weight, or one for each number of a head."""
    if order_of_halves(form) is None or all(getattr(one, "weight", None) is None for one in norms):
        return True
    return all(type(one) is RowRmsNorm for one in norms)


def sort_heads(module: nn.Module, norms: Sequence[RowModule], form: AttentionForm) -> None:
    """Bring queries and keys, with their norms, into the order of halves, head by head."""
    order = order_of_halves(form)
    if order is None:
        return
    for linear in projections(module)[:2]:
        reorder(linear, order)
    for norm in {id(one): one for one in norms}.values():
        if isinstance(norm, RowRmsNorm) and norm.weight is not None:
            heads = norm.weight.view(-1, len(order))  # one, where all are normed alike
            norm.weight = heads[:, order.to(norm.weight.device)].flatten()


def take_gate(module: nn.Module, head_dim: int) -> nn.Linear:
    """Leave the queries in the map that has each head's gate after its query; return the gates."""
    both = module.get_submodule(INPUTS[0])
    assert isinstance(both, nn.Linear)
    queries, gates = copy.copy(both), copy.copy(both)
    for index, part in enumerate((queries, gates)):
        part._parameters = {}
        part.out_features = both.out_features // 2
        for name, parameter in both._parameters.items():
            if parameter is not None:
                heads = parameter.detach().view(-1, 2, head_dim, *parameter.shape[1:])
                own = heads[:, index].flatten(0, 1)
                parameter = nn.Parameter(own, requires_grad=False)
            part._parameters[name] = parameter
    module._modules[INPUTS[0]] = queries
    return gates


def reorder(linear: nn.Module | None, order: Tensor) -> None:
    """Put the outputs of a map in another order, every len(order) of them alike."""
    assert isinstance(linear, nn.Linear)
    order = order.to(linear.weight.device)
    for name, parameter in linear.named_parameters():
        heads = parameter.detach().view(-1, len(order), *parameter.shape[1:])
        linear._parameters[name] = nn.Parameter(heads[:, order].flatten(0, 1), requires_grad=False)


def projections(attention: nn.Module) -> list[nn.Module | None]:
    return [attention._modules.get(name) for name in INPUTS]


def join_biases(biases: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Put biases one below the other; a map without one has zeros next to those with one."""
    given = [bias for bias in biases if bias is not None]
    if not given:
        return None
    pairs = zip(biases, sizes, strict=True)
    return torch.cat([given[0].new_zeros(size) if bias is None else bias for bias, size in pairs])


def can_join(parts: Sequence[nn.Module | None]) -> bool:
    """Whether maps can be one: of inputs of one width, and all with a bias or none."""
    if any(type(part) is not nn.Linear for part in parts):
        return False
    widths = {weight_of(part).shape[1] for part in parts}
    return len(widths) == 1 and len({bias_of(part) is None for part in parts}) == 1


def weight_of(linear: nn.Module | None) -> Tensor:
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach()


def bias_of(linear: nn.Module | None) -> Tensor | None:
    assert isinstance(linear, nn.Linear)
    return None if linear.bias is None else linear.bias.detach()
