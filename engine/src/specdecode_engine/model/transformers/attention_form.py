"""Recognises attention modules by what they compute, on random numbers, not by their names."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.kv_views import KVView
from specdecode_engine.model.layers.rope_keys import ORIGINAL
from specdecode_engine.model.target.head_order import halves_of_pairs
from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_engine.model.transformers.attention import ForwardState, PagedAttention
from specdecode_engine.model.transformers.recognition import (
    is_close,
    random_linear,
    random_tensor,
    with_children,
    with_random_parameters,
)
from specdecode_kernels.metadata import DEFAULT_ATTENTION, AttentionParams
from specdecode_kernels.torch.elementwise import rotate

INPUTS = ("q_proj", "k_proj", "v_proj")
OUTPUTS = ("o_proj", "dense", "out_proj")
GATE = "gate_proj"
FIRST_ARGUMENTS = ["self", "hidden_states", "position_embeddings", "attention_mask"]

_WIDTH, _ROWS = 8, 3
BETA = "llama_4_scaling_beta"
_INTERVAL = 2
"""Of temperatures, in place of their own: they must grow within the rows."""


class NormPlace(Enum):
    """Where an attention module norms queries and keys."""

    NOWHERE = auto()
    ROWS = auto()  # all heads as one
    HEADS = auto()
    ROTATED_HEADS = auto()


class Rotation(Enum):
    """Which numbers of a head turn by one angle."""

    NONE = auto()
    HALVES = auto()  # one of the first half with one of the second
    PAIRS = auto()  # neighbours, as complex numbers (Llama 4)


class Temperature(NamedTuple):
    """Queries at position p times 1 + scale * log(1 + floor((p + offset) / interval)).

    As Llama 4 in layers without rotation, and Ministral 3 in all; after Nakanishi,
    "Scalable-Softmax Is Superior for Attention", 2025.
    """

    interval: int
    scale: float
    offset: int  # of positions: they begin at 1 in Llama 4

    def factor(self, position: int) -> float:
        """Return the factor of queries at a position."""
        return 1.0 + self.scale * math.log1p((position + self.offset) // self.interval)


class AttentionForm(NamedTuple):
    """What an attention module computes: its children, and what happens between them."""

    output: str
    gate: str | None
    """The map whose sigmoid scales what queries read (AFMoE); that of queries where it has, of each
    head, the gate's outputs after those of the query (Qwen3-Next)."""
    norms: tuple[str, ...]  # of queries and keys
    head_dim: int
    norm_place: NormPlace
    rotation: Rotation
    rotated: int  # first numbers of a head that turn, if any do
    temperature: Temperature | None
    params: AttentionParams


class Attended(NamedTuple):
    """What a module attends with: rows [rows, heads, dim] and parameters."""

    q: Tensor
    k: Tensor
    v: Tensor
    params: AttentionParams


class _Recorder:
    """A KV view that keeps what a module attends with, and returns random rows."""

    def __init__(self) -> None:
        self.seen: list[Attended] = []

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        self.seen.append(Attended(q, k, v, params))
        return random_tensor(*q.shape[:2], v.shape[2])


def recognise_attention(module: nn.Module, angles: int | None = None) -> AttentionForm | None:
    """Return what an attention module over pages computes; None if it is none that we compute.

    Args:
        angles: of a head; None: half as many as it has numbers.
    """
    children = _children(module)
    if children is None:
        return None
    probe, temperature = _Probe.of(module, children, angles), _temperature(module)
    places = NormPlace if children.norms else (NormPlace.NOWHERE,)
    with torch.no_grad():
        projected = probe.projections()
        for given, rotations in probe.angle_forms():
            seen = probe.run(module, given)
            if seen is None:
                continue
            for place, rotation, is_tempered in product(places, rotations, (False, True)):
                tempered = temperature if is_tempered else None
                if is_tempered and temperature is None:
                    continue
                heads = probe.heads(projected, place, rotation, tempered)
                if all(map(is_close, seen[:3], heads)):
                    rotated = 2 * probe.angles[0].shape[1]
                    return AttentionForm(*children, place, rotation, rotated, tempered, seen.params)
    return None


def _temperature(module: nn.Module) -> Temperature | None:
    """Return the temperature that a module's attributes, or its model's angles, describe."""
    interval, scale = (getattr(module, name, None) for name in ("floor_scale", "attn_scale"))
    angles, offset = getattr(getattr(module, "config", None), "rope_parameters", None), 1
    if isinstance(angles, dict) and BETA in angles:
        interval, scale, offset = angles.get(ORIGINAL), angles[BETA], 0
    if not isinstance(interval, int | float) or not isinstance(scale, int | float):
        return None
    is_whole = interval == int(interval) >= 1
    return Temperature(int(interval), float(scale), offset) if is_whole else None


def _with_interval(module: nn.Module, interval: int) -> None:
    """Give a module's temperature another interval, without a change of its model's config."""
    module.floor_scale = interval  # type: ignore[assignment]
    config: Any = copy.copy(getattr(module, "config", None))
    if isinstance(getattr(config, "rope_parameters", None), dict):
        config.rope_parameters = {**config.rope_parameters, ORIGINAL: interval}
        module.config = config


class _Children(NamedTuple):
    """As the first fields of `AttentionForm`."""

    output: str
    gate: str | None
    norms: tuple[str, ...]
    head_dim: int


def _children(module: nn.Module) -> _Children | None:
    """Find four linear maps and perhaps a gate and two norms, and nothing else."""
    linear = {name for name, child in module.named_children() if type(child) is nn.Linear}
    gate = GATE if GATE in linear else None
    if gate is not None and _width(module, GATE) != _width(module, INPUTS[0]):
        return None
    output = next((name for name in OUTPUTS if linear - {GATE} == {*INPUTS, name}), None)
    if output is not None and _width(module, INPUTS[0]) == 2 * _inputs(module, output):
        gate = INPUTS[0] if gate is None else gate
    norms = tuple(sorted((name for name, _ in module.named_children() if name not in linear)))
    if output is None or [name[0] for name in norms] not in ([], ["k", "q"], ["q"]):
        return None
    if len(norms) == 1:  # one of both
        norms *= 2
    head_dim = getattr(module, "head_dim", None)
    if not isinstance(head_dim, int) or any(width % head_dim for width in _widths(module)):
        return None
    arguments = list(inspect.signature(type(module).forward).parameters)
    if arguments[:4] != FIRST_ARGUMENTS:
        return None
    return _Children(output, gate, norms[::-1], head_dim)


def _widths(module: nn.Module) -> list[int]:
    """Outputs of the maps of queries, keys and values."""
    return [_width(module, name) for name in INPUTS]


def _width(module: nn.Module, name: str) -> int:
    """Outputs of a linear map."""
    return cast(nn.Linear, module.get_submodule(name)).out_features


def _inputs(module: nn.Module, name: str) -> int:
    """Inputs of a linear map."""
    return cast(nn.Linear, module.get_submodule(name)).in_features


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a module is computed with, in place of its own weights: rows, angles, maps and norms."""

    head_dim: int
    rows: Tensor  # [rows, inputs]
    angles: tuple[Tensor, Tensor]  # [rows, angles of a head]
    inputs: Mapping[str, nn.Linear]
    output: Mapping[str, nn.Linear]
    gate: Mapping[str, nn.Linear]
    has_joint_gate: bool
    norms: tuple[tuple[str, nn.Module], ...]  # of queries and of keys

    @classmethod
    def of(cls, module: nn.Module, children: _Children, angles: int | None) -> "_Probe":
        widths = _widths(module)
        has_joint_gate = children.gate == INPUTS[0]
        attended = widths[0] // 2 if has_joint_gate else widths[0]
        names = {name: seed for seed, name in enumerate(children.norms)}
        norms = {
            name: with_random_parameters(module.get_submodule(name), seed)
            for name, seed in names.items()
        }
        shape = _ROWS, angles or children.head_dim // 2
        return cls(
            head_dim=children.head_dim,
            rows=random_tensor(_ROWS, _WIDTH),
            angles=(random_tensor(*shape), random_tensor(*shape, seed=1)),
            inputs={
                name: random_linear(_WIDTH, width, seed)
                for seed, (name, width) in enumerate(zip(INPUTS, widths, strict=True))
            },
            output={children.output: random_linear(attended, _WIDTH)},
            gate={}
            if children.gate is None or has_joint_gate
            else {children.gate: random_linear(_WIDTH, widths[0], seed=3)},
            has_joint_gate=has_joint_gate,
            norms=tuple((name, norms[name]) for name in children.norms),
        )

    def angle_forms(self) -> Iterator[tuple[object, tuple[Rotation, ...]]]:
        """Yield the angles in the forms that modules take, and what each of them may turn."""
        cos, sin = self.angles
        pair = tuple(torch.cat((half, half), dim=-1)[None] for half in self.angles)
        yield pair, (Rotation.HALVES, Rotation.NONE)
        yield torch.complex(cos, sin)[None], (Rotation.PAIRS,)

    def run(self, module: nn.Module, angles: object) -> Attended | None:
        """Compute a module over the recorder; None if it wants more, or attends otherwise."""
        maps = {**self.inputs, **self.output, **self.gate}
        children = {**maps, **dict(self.norms)}
        return attend_recorded(module, children, self.rows, angles, self._outputs)

    def _outputs(self, attended: Tensor) -> Tensor:
        """Compute what a module makes of what queries read [rows, heads, head_dim]."""
        attended = attended.flatten(1)
        gates = [gate(self.rows) for gate in self.gate.values()]
        if self.has_joint_gate:
            gates.append(self._query_and_gate()[1])
        for gate in gates:
            attended = attended * torch.sigmoid(gate)
        (output,) = self.output.values()
        mapped: Tensor = output(attended)
        return mapped

    def projections(self) -> tuple[Tensor, ...]:
        """Compute queries, keys and values [rows, width] before anything happens to them."""
        q, k, v = (linear(self.rows) for linear in self.inputs.values())
        return (self._query_and_gate()[0] if self.has_joint_gate else q), k, v

    def _query_and_gate(self) -> tuple[Tensor, Tensor]:
        """Split what the map of queries returns, [rows, width / 2] each."""
        mapped = self.inputs[INPUTS[0]](self.rows).view(_ROWS, -1, 2, self.head_dim)
        return mapped[:, :, 0].flatten(1), mapped[:, :, 1].flatten(1)

    def heads(
        self,
        projected: tuple[Tensor, ...],
        place: NormPlace,
        rotation: Rotation,
        temperature: Temperature | None,
    ) -> tuple[Tensor, ...]:
        """Compute what the module would attend with: queries, keys and values."""
        q, k, v = projected
        norms: Iterable[nn.Module | None] = [norm for _, norm in self.norms] or (None, None)
        pairs = zip((q, k), norms, strict=True)
        q, k = (_heads(x, norm, place, self.head_dim, self.angles, rotation) for x, norm in pairs)
        if temperature is not None:
            nearer = temperature._replace(interval=_INTERVAL)
            q = q * torch.tensor([nearer.factor(row) for row in range(_ROWS)])[:, None, None]
        return q, k, v.view(_ROWS, -1, self.head_dim)


def attend_recorded(
    module: nn.Module,
    children: Mapping[str, nn.Module],
    rows: Tensor,
    angles: object,
    outputs: Callable[[Tensor], Tensor],
) -> Attended | None:
    """Compute a module over a recorder, with other children and rows [rows, inputs].

    Returns None if it wants more, attends otherwise, or does not compute `outputs` of what it read.
    """
    recorder = _Recorder()
    computed = attend_with(module, children, rows, angles, recorder)
    if computed is None or len(recorder.seen) != 1:
        return None
    seen = recorder.seen[0]
    attended = random_tensor(*seen.q.shape[:2], seen.v.shape[2])
    return seen if is_close(computed, outputs(attended)[None]) else None


def attend_with(
    module: nn.Module,
    children: Mapping[str, nn.Module],
    rows: Tensor,
    angles: object,
    view: KVView,
    **given: object,
) -> Tensor | None:
    """Compute a module of other children over a view; None if it wants or returns more.

    Args:
        rows: [rows, inputs].
        given: arguments that some modules take.
    """
    state = ForwardState()
    state.view = view
    probe = with_children(module, children)
    paged = getattr(module, "paged_attention", None)
    chunk_size = paged.chunk_size if isinstance(paged, PagedAttention) else None
    probe.paged_attention = PagedAttention(state, 0, "", chunk_size)  # type: ignore[assignment]
    known = inspect.signature(type(module).forward).parameters
    given |= {"position_ids": torch.arange(len(rows))[None]}
    given = {name: given[name] for name in given.keys() & known}
    given |= {"position_embeddings": angles, "attention_mask": None}
    if _temperature(module) is not None:
        _with_interval(probe, _INTERVAL)
    try:
        computed, weights = probe(hidden_states=rows[None], **given)
    except (TypeError, RuntimeError, ValueError, AttributeError, KeyError, IndexError):
        return None
    except UnsupportedModel:  # the forward that proves the rows reports it with its place
        return None
    return computed if weights is None else None


def _heads(
    x: Tensor,
    norm: nn.Module | None,
    place: NormPlace,
    head_dim: int,
    angles: tuple[Tensor, Tensor],
    rotation: Rotation,
) -> Tensor:
    """Queries or keys [rows, heads, head_dim] of a projection [rows, width]."""
    if place is NormPlace.ROWS:
        x = _normed(norm, x[None])[0]
    x = x.view(len(x), -1, head_dim)
    if place is NormPlace.HEADS:
        x = _normed(norm, x[None])[0]
    rotated = 2 * angles[0].shape[1]
    if rotation is Rotation.HALVES:
        x = torch.cat((rotate(x[..., :rotated], *angles), x[..., rotated:]), dim=-1)
    if rotation is Rotation.PAIRS and rotated == head_dim:
        x = rotate(x[..., halves_of_pairs(head_dim)], *angles)
        x = torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
    return _normed(norm, x[None])[0] if place is NormPlace.ROTATED_HEADS else x


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """Norm x, where the norm is made for this shape."""
    assert norm is not None
    try:
        normed: Tensor = norm(x)
    except RuntimeError:
        return torch.full_like(x, torch.nan)
    return normed
