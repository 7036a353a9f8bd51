"""Recognises attention modules by what they compute, on random numbers, not by their names."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from specdecode_engine.model.transformers.attention import (
    ForwardState,
    PagedAttention,
    UnsupportedModel,
)
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
FIRST_ARGUMENTS = ["self", "hidden_states", "position_embeddings", "attention_mask"]

_WIDTH, _ROWS = 8, 3


class NormPlace(Enum):
    """Where an attention module norms queries and keys."""

    NOWHERE = auto()
    ROWS = auto()  # all heads as one
    HEADS = auto()
    ROTATED_HEADS = auto()


class AttentionForm(NamedTuple):
    """What an attention module computes: its children, and what happens between them."""

    output: str
    norms: tuple[str, ...]  # of queries and keys
    head_dim: int
    norm_place: NormPlace
    is_rotated: bool  # in halves, the whole head
    params: AttentionParams


class _Attended(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    params: AttentionParams


class _Recorder:
    """A KV view that keeps what a module attends with, and returns random rows."""

    def __init__(self) -> None:
        self.seen: list[_Attended] = []

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> Tensor:
        self.seen.append(_Attended(q, k, v, params))
        return random_tensor(*q.shape[:2], v.shape[2])


def recognise_attention(module: nn.Module) -> AttentionForm | None:
    """Return what an attention module over pages computes; None if it is none that we compute."""
    children = _children(module)
    if children is None:
        return None
    probe = _Probe.of(module, children)
    with torch.no_grad():
        seen = probe.run(module)
        if seen is None:
            return None
        for place in NormPlace if children.norms else (NormPlace.NOWHERE,):
            for is_rotated in (True, False):
                if all(map(is_close, seen[:3], probe.heads(place, is_rotated))):
                    return AttentionForm(*children, place, is_rotated, seen.params)
    return None


class _Children(NamedTuple):
    """As the first fields of `AttentionForm`."""

    output: str
    norms: tuple[str, ...]
    head_dim: int


def _children(module: nn.Module) -> _Children | None:
    """Find four linear maps and perhaps two norms, and nothing else."""
    linear = {name for name, child in module.named_children() if type(child) is nn.Linear}
    output = next((name for name in OUTPUTS if linear == {*INPUTS, name}), None)
    norms = tuple(sorted((name for name, _ in module.named_children() if name not in linear)))
    if output is None or [name[0] for name in norms] not in ([], ["k", "q"]):
        return None
    head_dim = getattr(module, "head_dim", None)
    if not isinstance(head_dim, int) or any(width % head_dim for width in _widths(module)):
        return None
    arguments = list(inspect.signature(type(module).forward).parameters)
    return _Children(output, norms[::-1], head_dim) if arguments[:4] == FIRST_ARGUMENTS else None


def _widths(module: nn.Module) -> list[int]:
    """Outputs of the maps of queries, keys and values."""
    return [cast(nn.Linear, module.get_submodule(name)).out_features for name in INPUTS]


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a module is computed with, in place of its own weights: rows, angles, maps and norms."""

    head_dim: int
    rows: Tensor  # [rows, inputs]
    angles: tuple[Tensor, Tensor]  # [rows, head_dim / 2]
    inputs: Mapping[str, nn.Linear]
    output: Mapping[str, nn.Linear]
    norms: Mapping[str, nn.Module]  # of queries and of keys

    @classmethod
    def of(cls, module: nn.Module, children: _Children) -> "_Probe":
        widths = _widths(module)
        norms = [module.get_submodule(name) for name in children.norms]
        shape = _ROWS, children.head_dim // 2
        return cls(
            head_dim=children.head_dim,
            rows=random_tensor(_ROWS, _WIDTH),
            angles=(random_tensor(*shape), random_tensor(*shape, seed=1)),
            inputs={
                name: random_linear(_WIDTH, width, seed)
                for seed, (name, width) in enumerate(zip(INPUTS, widths, strict=True))
            },
            output={children.output: random_linear(widths[0], _WIDTH)},
            norms={
                name: with_random_parameters(norm, seed)
                for seed, (name, norm) in enumerate(zip(children.norms, norms, strict=True))
            },
        )

    def run(self, module: nn.Module) -> _Attended | None:
        """Compute a module over the recorder; None if it wants more, or attends otherwise."""
        recorder, state = _Recorder(), ForwardState()
        state.view = recorder
        probe = with_children(module, {**self.inputs, **self.output, **self.norms})
        probe.paged_attention = PagedAttention(state, 0, "")  # type: ignore[assignment]
        angles = tuple(torch.cat((half, half), dim=-1)[None] for half in self.angles)
        try:
            computed, weights = probe(
                hidden_states=self.rows[None], position_embeddings=angles, attention_mask=None
            )
        except (TypeError, RuntimeError, ValueError, AttributeError, KeyError, IndexError):
            return None
        except UnsupportedModel:  # the forward that proves the rows reports it with its place
            return None
        if weights is not None or len(recorder.seen) != 1:
            return None
        seen = recorder.seen[0]
        (output,) = self.output.values()
        wanted = output(random_tensor(*seen.q.shape).flatten(1))[None]
        return seen if is_close(computed, wanted) else None

    def heads(self, place: NormPlace, is_rotated: bool) -> tuple[Tensor, ...]:
        """Compute what the module would attend with: queries, keys and values."""
        q, k, v = (linear(self.rows) for linear in self.inputs.values())
        norms: Iterable[nn.Module | None] = self.norms.values() or (None, None)
        angles = self.angles if is_rotated else None
        pairs = zip((q, k), norms, strict=True)
        q, k = (_heads(x, norm, place, self.head_dim, angles) for x, norm in pairs)
        return q, k, v.view(_ROWS, -1, self.head_dim)


def _heads(
    x: Tensor,
    norm: nn.Module | None,
    place: NormPlace,
    head_dim: int,
    angles: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Queries or keys [rows, heads, head_dim] of a projection [rows, width]."""
    if place is NormPlace.ROWS:
        x = _normed(norm, x[None])[0]
    x = x.view(len(x), -1, head_dim)
    if place is NormPlace.HEADS:
        x = _normed(norm, x[None])[0]
    if angles is not None:
        x = rotate(x, *angles)
    return _normed(norm, x[None])[0] if place is NormPlace.ROTATED_HEADS else x


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    """Norm x, where the norm is made for this shape."""
    assert norm is not None
    try:
        normed: Tensor = norm(x)
    except RuntimeError:
        return torch.full_like(x, torch.nan)
    return normed
