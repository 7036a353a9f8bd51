"""Proves on random numbers that parts of a layer's block sum up to the whole."""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.model.checkpoint.checkpoint import Shape
from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.target.sharding import Pieces, shares
from specdecode_engine.model.transformers.attention_form import attend_with
from specdecode_engine.model.transformers.gated_delta_net import recognise_delta_net
from specdecode_engine.model.transformers.recognition import is_close, random_tensor
from specdecode_kernels.metadata import DEFAULT_ATTENTION, AttentionParams

Numbers = Mapping[str, Tensor]
"""Parameters of a block by name."""

Params = list[tuple[object, ...]]
"""With which parameters a block attends."""

_WIDTH, _ROWS = 8, 3


@dataclass(frozen=True, slots=True)
class DividedBlock:
    """A module of the whole network and that of one rank, with parameters of other shapes."""

    path: str
    whole: nn.Module
    part: nn.Module
    changed: Mapping[str, tuple[Shape, Shape]]  # of parameters of the whole and of the part
    parents: tuple[nn.Module, nn.Module]  # of which the two are children

    @property
    def inputs(self) -> list[str]:
        """Names of linear maps of whose outputs a rank has a share."""
        return self._maps(0)

    @property
    def outputs(self) -> list[str]:
        """Names of linear maps of whose inputs a rank has a share."""
        return self._maps(1)

    def _maps(self, dim: int) -> list[str]:
        names = (name.removesuffix(".weight") for name in self.changed if name.endswith(".weight"))
        linear = [name for name in names if type(self.whole.get_submodule(name)) is nn.Linear]
        return [name for name in linear if self.changed_dims(f"{name}.weight") == [dim]]

    def changed_dims(self, name: str) -> list[int]:
        """Return the dimensions of a parameter of which a rank has a share."""
        pairs = zip(*self.changed[name], strict=True)
        return [dim for dim, (whole, own) in enumerate(pairs) if whole != own]

    @property
    def key(self) -> object:
        """What modules have in common that are divided alike."""
        return self.path if self.is_attention else (type(self.whole), *self.changed.items())

    @property
    def is_attention(self) -> bool:
        return "Attention" in type(self.whole).__name__


def layouts_of(
    block: DividedBlock, output: str, angles: Collection[int], ranks: int
) -> Mapping[str, Pieces] | None:
    """Return the pieces of linear maps that have several; None if parts do not sum up.

    Args:
        output: name of the map whose results are added over the ranks.
        angles: numbers of angles that a head may turn by.
    """
    numbers = _numbers(block.whole, output)
    for given in _angle_forms(angles) if block.is_attention else (None,):
        with torch.no_grad():
            wanted = _compute(block.whole, numbers, given)
            if wanted is None:
                continue
            for layouts in _possible_layouts(block, output):
                if _sums_up(block, output, numbers, layouts, given, wanted, ranks):
                    return layouts
    return None


def _numbers(module: nn.Module, output: str) -> Numbers:
    """Draw parameters, of maps between few inputs or outputs of the block and what is inside."""
    numbers = {}
    for seed, (name, parameter) in enumerate(module.named_parameters()):
        path, _, kind = name.rpartition(".")
        shape = tuple(parameter.shape)
        if path == output:
            shape = (_WIDTH, *shape[1:])
        elif path and kind == "weight" and type(module.get_submodule(path)) is nn.Linear:
            shape = (shape[0], _WIDTH)
        factor = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        numbers[name] = random_tensor(*shape, seed=seed) * factor
    return numbers


def _possible_layouts(block: DividedBlock, output: str) -> Iterator[Mapping[str, Pieces]]:
    """Yield what may lie one after the other in a map of the input: nothing, gate and up, q k v."""
    yield {}
    whole_net, own_net = recognise_delta_net(block.whole), recognise_delta_net(block.part)
    if whole_net is not None and own_net is not None:
        yield whole_net.pieces(own_net.shape)
    whole, own = (shape[1] for shape in block.changed[f"{output}.weight"])
    if len(block.inputs) != 1:
        return
    (name,) = block.inputs
    rows, own_rows = (shape[0] for shape in block.changed[f"{name}.weight"])
    if (rows, own_rows) == (2 * whole, 2 * own):
        yield {name: ((whole, own), (whole, own))}
    if rows > whole and own_rows > own:
        kv = (rows - whole) // 2, (own_rows - own) // 2
        yield {name: ((whole, own), kv, kv)}


def _sums_up(
    block: DividedBlock,
    output: str,
    numbers: Numbers,
    layouts: Mapping[str, Pieces],
    angles: object,
    wanted: tuple[Tensor, Params],
    ranks: int,
) -> bool:
    total, params = torch.zeros_like(wanted[0]), list[Params]()
    for rank in range(ranks):
        own = {
            name: _share(block, name, number, layouts, rank, ranks)
            for name, number in numbers.items()
        }
        if rank and (bias := f"{output}.bias") in own:
            own[bias] = torch.zeros_like(own[bias])
        computed = _compute(block.part, own, angles)
        if computed is None:
            return False
        total += computed[0]
        params.append(computed[1])
    return is_close(total, wanted[0]) and all(one == wanted[1] for one in params)


def _share(
    block: DividedBlock,
    name: str,
    number: Tensor,
    layouts: Mapping[str, Pieces],
    rank: int,
    ranks: int,
) -> Tensor:
    if name not in block.changed:
        return number
    (dim,) = block.changed_dims(name)
    whole, own = (shape[dim] for shape in block.changed[name])
    pieces = layouts.get(name.rpartition(".")[0], ((whole, own),))
    parts = (number[(slice(None),) * dim + (one,)] for one in shares(pieces, rank, ranks))
    return torch.cat(list(parts), dim)


def _angle_forms(angles: Collection[int]) -> Iterator[object]:
    """Yield angles of rows in the forms that modules take."""
    for count in angles:
        cos, sin = random_tensor(_ROWS, count), random_tensor(_ROWS, count, seed=1)
        yield tuple(torch.cat((half, half), dim=-1)[None] for half in (cos, sin))
        yield cos[None], sin[None]
        yield torch.complex(cos, sin)[None]


def _compute(module: nn.Module, numbers: Numbers, angles: object) -> tuple[Tensor, Params] | None:
    """Compute a block of other parameters; also return with which parameters it attends."""
    probe, rows, view = _with_numbers(module, numbers), random_tensor(_ROWS, _WIDTH), _Headwise()
    if angles is not None:
        shared = _SharedKeys(module)
        computed = attend_with(probe, {}, rows, angles, view, shared_kv_states=shared)
    else:
        try:
            computed = probe(rows[None])
        except (TypeError, RuntimeError, ValueError, AttributeError, KeyError, IndexError):
            return None
    return (computed, view.params) if isinstance(computed, Tensor) else None


def _with_numbers(module: nn.Module, numbers: Numbers, prefix: str = "") -> nn.Module:
    """Copy a module with all that is in it, with other parameters."""
    probe = copy.copy(module)
    probe._parameters = {
        name: None
        if parameter is None
        else nn.Parameter(numbers[f"{prefix}{name}"], requires_grad=False)
        for name, parameter in module._parameters.items()
    }
    probe._modules = {
        name: child and _with_numbers(child, numbers, f"{prefix}{name}.")
        for name, child in module._modules.items()
    }
    return probe


class _SharedKeys(dict[str, tuple[Tensor, Tensor]]):
    """Keys and values of other layers, by type, for a layer that has none (Gemma 4): one head for
    all queries.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._width = getattr(module, "head_dim", _WIDTH)

    def __missing__(self, layer_type: str) -> tuple[Tensor, Tensor]:
        k, v = (random_tensor(1, 1, _ROWS, self._width, seed=seed) for seed in (3, 4))
        return k, v


class _Headwise:
    """A KV view whose rows see all rows given, each query head by its own numbers and KV head."""

    def __init__(self) -> None:
        self.params: Params = []  # of each call, without sinks

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * params.scale_of(q.shape[2])
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v).contiguous()
        self.params.append(astuple(replace(params, sinks=None)))
        return attended if params.sinks is None else attended + params.sinks[:, None]
