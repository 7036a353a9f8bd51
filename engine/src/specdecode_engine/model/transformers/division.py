"""How the parameters of a network are divided among ranks, proved on random numbers.

A rank has transformers' network of a config with fewer heads and narrower MLPs. Modules with
parameters of other shapes than in the whole network are its divided blocks: attention, a gated
delta net, an MLP, or the experts of a mixture. What the blocks of all ranks return has to sum up to
what the whole block does; everything else is the same on every rank.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from specdecode_engine.model.checkpoint.checkpoint import Shape, StorePart, TensorStore
from specdecode_engine.model.target.sharding import CannotDivide, Pieces, ShardedStore
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers.divided_block import DividedBlock, layouts_of
from specdecode_engine.model.transformers.divided_config import divide_transformers_config
from specdecode_engine.model.transformers.input_scaled_mixture import (
    has_input_scaled_parts,
    recognise_input_scaled,
)
from specdecode_engine.model.transformers.latent_form import LatentForm, recognise_latent_attention
from specdecode_engine.model.transformers.loading import make_network
from specdecode_engine.model.transformers.mixture_recognition import recognise_experts
from specdecode_engine.model.transformers.parameter_sources import expected_tensors, used_parameters
from specdecode_engine.model.transformers.row_norms import RowNormedAttention
from specdecode_engine.ranks import ALONE, Ranks

EXPERTS = frozenset({"gate_up_proj", "gate_up_proj_bias", "down_proj"})


@dataclass(frozen=True, slots=True)
class Division:
    """What a rank has of a network."""

    config: TransformersConfig
    network: Any  # of the config, on the meta device
    summed: frozenset[str]
    """Paths of the linear maps and experts whose results are added over the ranks."""
    joined: Mapping[str, Pieces]
    """Pieces of the divided dimension of maps and experts that have several, by path."""
    row_normed: Mapping[str, RowNormedAttention]
    """Attention whose norms are those of the heads of all ranks, by path."""

    @classmethod
    def of(
        cls, config: TransformersConfig, whole: Any, dtype: torch.dtype, ranks: int
    ) -> "Division":
        """Compare a network with that of the config of one rank.

        Args:
            whole: the network of `config` in `dtype`, on the meta device.

        Raises:
            CannotDivide: sizes cannot be divided, or modules are not known to be the sum of parts.
        """
        own = divide_transformers_config(config, ranks)
        part = make_network(own, dtype)
        summed, joined = set[str](), dict[str, Pieces]()
        row_normed: dict[str, RowNormedAttention] = {}
        known: dict[object, _Parts | None] = {}
        tables = (one for name, one in whole.named_buffers() if name.endswith("inv_freq"))
        angles = {len(table) for table in tables} | {config.decoder.head_dim // 2}
        _refuse_other_numbers(config, whole, part, ranks)
        for block in _blocks(whole, part):
            if block.key not in known:
                known[block.key] = _divided(block, angles, ranks)
            if (found := known[block.key]) is None:
                raise _cannot(config, block.path, ranks)
            summed.add(_join(block.path, found.output))
            joined |= {_join(block.path, name): pieces for name, pieces in found.layouts.items()}
            if found.row_normed is not None:
                row_normed[block.path] = found.row_normed
        return cls(own, part, frozenset(summed), joined, row_normed)

    def store(self, store: TensorStore, ranks: Ranks) -> ShardedStore:
        """Return what a rank reads of tensors that have been checked.

        Raises:
            CannotDivide: it is not known which part of a tensor a rank has.
        """
        stored = {name: tensor.shape for name, tensor in store.tensors.items()}
        shapes = stored | expected_tensors(self.network, stored)[0]
        joined: dict[str, Pieces] = {}
        for name, (parameter, is_whole) in used_parameters(self.network, stored).items():
            sizes = [a for a, b in zip(stored[name], shapes[name], strict=True) if a != b]
            owner = parameter.rpartition(".")[0]
            if len(sizes) > 1 or (sizes and not is_whole and owner not in self.summed):
                raise _cannot(self.config, name, ranks.size)
            pieces = self.joined.get(owner, ())
            if sizes == [sum(whole for whole, _ in pieces)]:
                joined[name] = pieces
        # Modules of transformers take plain weights.
        plain = {name: replace(tensor, quantized=None) for name, tensor in store.tensors.items()}
        return ShardedStore.of(StorePart(store, plain), shapes, ranks, joined)


@dataclass(slots=True, eq=False)
class DividedModules:
    """The modules of a rank's network that compute with the other ranks, until they are replaced.

    `summed` are linear maps and experts whose results are added over the ranks, `row_normed` is
    attention whose norms are those of the heads of all ranks.
    """

    ranks: Ranks = ALONE
    summed: set[nn.Module] = field(default_factory=set)
    row_normed: dict[nn.Module, RowNormedAttention] = field(default_factory=dict)

    @classmethod
    def of(cls, division: Division | None, part: nn.Module, ranks: Ranks) -> "DividedModules":
        if division is None:
            return cls(ranks)
        summed = {part.get_submodule(path) for path in division.summed}
        row_normed = {part.get_submodule(path): one for path, one in division.row_normed.items()}
        return cls(ranks, summed, row_normed)

    def take_ranks(self, module: nn.Module) -> Ranks:
        """Return the ranks over which a module's results are added; it is replaced."""
        if module not in self.summed:
            return ALONE
        self.summed.remove(module)
        return self.ranks

    def check_taken(self) -> None:
        """Raise if one was replaced by what computes with this rank alone.

        Raises:
            UnsupportedModel: attention has norms of all heads and is not computed as a whole.
        """
        assert not self.summed, "what is divided was replaced without a sum over the ranks"
        for module in self.row_normed:
            raise UnsupportedModel(
                f"{type(module).__name__} norms all heads of queries and keys, in a form that "
                f"{self.ranks.size} ranks cannot compute; set parallelism.tensor to 1"
            )


class _Parts(NamedTuple):
    """How parts sum up to a block: the name of what is added over ranks, the pieces of other
    divided children, and the norms of all heads. The block is what is added if there is no name.
    """

    output: str
    layouts: Mapping[str, Pieces]
    row_normed: RowNormedAttention | None = None


def _blocks(whole: nn.Module, part: nn.Module) -> Iterator[DividedBlock]:
    """Yield the modules of which a rank has a part: each with what lies in it next to its maps."""
    own = {name: tuple(one.shape) for name, one in part.named_parameters()}
    changed = {
        name: (tuple(parameter.shape), own[name])
        for name, parameter in whole.named_parameters()
        if tuple(parameter.shape) != own[name]
    }
    owners = {name: name.rpartition(".")[0] for name in changed}
    around = {path.rpartition(".")[0] for path in owners.values() if _is_map(whole, path)}
    by_path: dict[str, dict[str, tuple[Shape, Shape]]] = {}
    for name, owner in owners.items():
        parent = owner.rpartition(".")[0]
        path = parent if parent in around else owner
        by_path.setdefault(path, {})[name.removeprefix(f"{path}.")] = changed[name]
    for path, parameters in by_path.items():
        modules = whole.get_submodule(path), part.get_submodule(path)
        parent = path.rpartition(".")[0]
        parents = whole.get_submodule(parent), part.get_submodule(parent)
        yield DividedBlock(path, *modules, parameters, parents)


def _is_map(network: nn.Module, path: str) -> bool:
    return type(network.get_submodule(path)) is nn.Linear


def _divided(block: DividedBlock, angles: Collection[int], ranks: int) -> _Parts | None:
    """Return how parts of a block sum up to it, None if they do not."""
    if block.changed.keys() <= EXPERTS:
        return _divided_experts(block)
    dims = [block.changed_dims(name) for name in block.changed]
    if any(len(one) != 1 for one in dims) or not block.inputs or len(block.outputs) != 1:
        return None
    if any(own > whole for whole, own in block.changed.values()):
        return None
    (output,) = block.outputs
    if (form := recognise_latent_attention(block.whole)) is not None:
        own = recognise_latent_attention(block.part)
        return _Parts(output, {}) if own is not None and _is_share(own, form, ranks) else None
    if block.is_attention:
        normed = RowNormedAttention.of(block.whole, block.part, min(angles))
        if normed is not None:
            return _Parts(output, {}, normed)
    layouts = layouts_of(block, output, angles, ranks)
    return None if layouts is None else _Parts(output, layouts)


def _is_share(own: LatentForm, whole: LatentForm, ranks: int) -> bool:
    """Whether two forms differ in nothing but the number of heads."""
    if astuple(own.params) != astuple(whole.params):
        return False
    return own == whole._replace(heads=whole.heads // ranks, params=own.params)


def _divided_experts(block: DividedBlock) -> _Parts | None:
    if "down_proj" not in block.changed:
        return None
    kind = recognise_experts(block.whole)
    if kind is None:
        return _divided_input_scaled(block)
    if kind != recognise_experts(block.part):
        return None
    inner = tuple(shape[1 if kind.is_transposed else 2] for shape in block.changed["down_proj"])
    whole, own = inner
    return _Parts("", {} if kind.is_interleaved else {"": ((whole, own), (whole, own))})


def _divided_input_scaled(block: DividedBlock) -> _Parts | None:
    """Return how experts that read rows times their factors are divided; None for others."""
    if not all(map(has_input_scaled_parts, block.parents)):
        return None
    kind, own = map(recognise_input_scaled, block.parents)
    if kind is None or kind != own:
        return None
    whole_inner, own_inner = (shape[1] for shape in block.changed["down_proj"])
    inner = whole_inner, own_inner
    return _Parts("", {"": (inner, inner)})


def _refuse_other_numbers(
    config: TransformersConfig, whole: nn.Module, part: nn.Module, ranks: int
) -> None:
    """Raise if a rank's network computes with other numbers than the whole one."""
    others = dict(part.named_modules())
    for path, one in whole.named_modules():
        other = others.pop(path, None)
        if other is None or _is_other(one, other):
            raise _cannot(config, path, ranks)


def _is_other(one: nn.Module, other: nn.Module) -> bool:
    pairs = ((value, vars(other).get(name)) for name, value in vars(one).items())
    if any(isinstance(value, float) and value != own for value, own in pairs):
        return True
    names = [set(each._parameters) for each in (one, other)]
    buffers = [{n: b.shape for n, b in each.named_buffers()} for each in (one, other)]
    return type(one) is not type(other) or names[0] != names[1] or buffers[0] != buffers[1]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if name else path


def _cannot(config: TransformersConfig, path: str, ranks: int) -> CannotDivide:
    return CannotDivide(
        f"{config.folder}: {path} of {config.architecture} is not known to be the sum of parts of "
        f"{ranks} ranks; set parallelism.tensor to 1"
    )
