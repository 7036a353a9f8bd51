"""Divides a model among ranks: the config of the part of one rank, and the tensors that it reads.

A rank has its share of the heads of attention, of the intermediate size of every MLP and expert,
and of the vocabulary that the head scores; everything else is whole. Shares are consecutive, so
that the shapes alone decide which part of a tensor a rank reads. Where there are fewer shares than
ranks, as of KV heads, neighbours read the same one.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor

from specdecode_api.report import TerminationReason
from specdecode_engine.model.checkpoint.checkpoint import Part, Shape, StoredTensor, TensorStore
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.layers.sparse_mlp import ExpertTensors, SparseMlpConfig
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.ranks import Ranks

log = logging.getLogger(__name__)

Pieces = tuple[tuple[int, int], ...]
"""Sizes of what lies one after the other in a dimension: of the whole, and of a rank's share."""

OUTPUT_BIASES = ("o_proj.bias", "down_proj.bias", "down_proj_bias")
"""Ends of names of what is added once to a sum over ranks: rank 0 has it, the others have zeros."""


class CannotDivide(CheckpointError):
    """A model that cannot be divided among so many ranks; the message has the numbers that can."""

    reason = TerminationReason.CANNOT_SERVE


def shard_config(config: LlamaConfig, ranks: int, folder: Path) -> LlamaConfig:
    """Return the config of the part of one rank; it is the same on every rank.

    A head whose vocabulary cannot be divided stays whole.

    Args:
        folder: of the checkpoint, for errors.

    Raises:
        CannotDivide: heads or an intermediate size cannot be divided.
    """
    if ranks == 1:
        return config
    if fault := _fault(config, ranks):
        most = config.decoder.num_attention_heads
        possible = [n for n in range(1, most + 1) if _fault(config, n) is None]
        raise CannotDivide(f"{folder / 'config.json'}: {fault}; {remedy_of(possible)}")
    decoder, vocab = config.decoder, config.vocab_size
    inner = decoder.intermediate_size
    return replace(
        config,
        decoder=replace(
            decoder,
            num_attention_heads=decoder.num_attention_heads // ranks,
            num_key_value_heads=max(decoder.num_key_value_heads // ranks, 1),
            intermediate_size=inner // ranks if _has_dense_layers(config) else inner,
        ),
        sparse_mlp=config.sparse_mlp and _shard_experts(config.sparse_mlp, ranks),
        own_head_rows=None if vocab % ranks else vocab // ranks,
    )


def _shard_experts(mlp: SparseMlpConfig, ranks: int) -> SparseMlpConfig:
    assert not mlp.is_fused, "a share of all gates before all ups is not consecutive"
    shared = mlp.shared_expert
    return replace(
        mlp,
        moe_intermediate_size=mlp.moe_intermediate_size // ranks,
        shared_expert=shared
        and replace(shared, intermediate_size=shared.intermediate_size // ranks),
    )


def _fault(config: LlamaConfig, ranks: int) -> str | None:
    """Return why a model cannot be divided, None if it can."""
    for name, size in _sizes(config):
        if size % ranks:
            return f"{name} {size} cannot be divided among {ranks} ranks"
    return kv_heads_fault(config.decoder.num_key_value_heads, ranks)


def kv_heads_fault(kv_heads: int, ranks: int) -> str | None:
    """Return why KV heads cannot be divided, None if they can."""
    if kv_heads % ranks and ranks % kv_heads:
        return f"num_key_value_heads {kv_heads} cannot be divided among {ranks} ranks, nor repeated"
    return None


def _sizes(config: LlamaConfig) -> Iterator[tuple[str, int]]:
    """Yield what is divided, by the keys of config.json."""
    decoder, mlp = config.decoder, config.sparse_mlp
    yield "num_attention_heads", decoder.num_attention_heads
    if _has_dense_layers(config):
        yield "intermediate_size", decoder.intermediate_size
    if mlp is not None:
        is_stacked = mlp.tensors is ExpertTensors.STACKED
        key = "intermediate_size" if is_stacked else "moe_intermediate_size"
        yield key, mlp.moe_intermediate_size
    if mlp is not None and mlp.shared_expert is not None:
        yield "shared_expert_intermediate_size", mlp.shared_expert.intermediate_size


def _has_dense_layers(config: LlamaConfig) -> bool:
    return any(config.sparse_mlp_of(n) is None for n in range(config.num_hidden_layers))


def remedy_of(numbers: Iterable[int]) -> str:
    """Name the numbers of ranks that are possible."""
    *others, last = map(str, numbers)
    possible = f"{', '.join(others)} or {last}" if others else last
    return f"set parallelism.tensor to {possible}"


@dataclass(frozen=True, slots=True)
class ShardedStore:
    """The tensors of a checkpoint as one rank reads them."""

    source: TensorStore
    pieces: Mapping[str, list[tuple[Part, Part]]]  # parts of the stored tensor and of this rank's
    tensors: Mapping[str, StoredTensor]
    zeros: frozenset[str]  # names of what other ranks add

    @classmethod
    def of(
        cls,
        source: TensorStore,
        shapes: Mapping[str, Shape],
        ranks: Ranks,
        joined: Mapping[str, Pieces] | None = None,
    ) -> "ShardedStore":
        """Divide tensors that have been checked.

        Args:
            shapes: of the parts of one rank, for every tensor; see `shard_config`.
            joined: pieces of the tensors whose divided dimension has several, each divided alone.
        """
        pieces = {
            name: _pieces(one.shape, shapes[name], ranks, (joined or {}).get(name))
            for name, one in source.tensors.items()
        }
        tensors = {
            name: divided_header(one, shapes[name], pieces[name][0][0])
            for name, one in source.tensors.items()
        }
        _warn_of_cut_groups(source.tensors, tensors)
        zeros = frozenset(name for name in tensors if ranks.rank and name.endswith(OUTPUT_BIASES))
        return cls(source, pieces, tensors, zeros)

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        """Compare with the shapes of whole tensors."""
        self.source.check(expected, optional)

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        assert not part, "a part of a rank is read as a whole"
        if name in self.zeros:
            into.zero_()
        else:
            for part_of_whole, own in self.pieces[name]:
                self.source.read(name, into[own], part_of_whole)

    def get(self, name: str) -> Tensor:
        stored, pieces = self.source.get(name), self.pieces[name]
        if len(pieces) == 1:
            found = stored[pieces[0][0]]
        else:
            found = stored.new_empty(self.tensors[name].shape)
            for part_of_whole, own in pieces:
                found[own] = stored[part_of_whole]
        return torch.zeros_like(found) if name in self.zeros else found


def shares(pieces: Pieces, rank: int, ranks: int) -> list[slice]:
    """Return the range that a rank has of each piece of a dimension."""
    ranges, end = list[slice](), 0
    for whole, own in pieces:
        start = end + rank * (whole // own) // ranks * own
        ranges.append(slice(start, start + own))
        end += whole
    return ranges


def _pieces(
    whole: Shape, own: Shape, ranks: Ranks, joined: Pieces | None
) -> list[tuple[Part, Part]]:
    """Return the parts of a tensor that one rank has, and where they lie in its own."""
    if joined is None:
        sizes = zip(whole, own, strict=True)
        return [(tuple(shares((one,), ranks.rank, ranks.size)[0] for one in sizes), ())]
    (dim,) = (dim for dim, (a, b) in enumerate(zip(whole, own, strict=True)) if a != b)
    before, starts = (slice(None),) * dim, accumulate((size for _, size in joined), initial=0)
    ranges = shares(joined, ranks.rank, ranks.size)
    owns = (slice(a, b) for a, b in pairwise(starts))
    return [((*before, a), (*before, b)) for a, b in zip(ranges, owns, strict=True)]


def divided_header(stored: StoredTensor, shape: Shape, part: Part = ()) -> StoredTensor:
    """Describe a part; it is kept as stored unless a rank would have parts of groups."""
    quantized = stored.quantized
    if quantized is not None:
        group, inputs = quantized.precision.group, -2 if quantized.is_transposed else -1
        is_divided = shape[inputs] < stored.shape[inputs]
        is_cut = is_divided and (quantized.is_shuffled or (group and shape[inputs] % group))
        quantized = None if is_cut else replace(quantized, part=part)
    return replace(stored, shape=shape, quantized=quantized)


def _warn_of_cut_groups(whole: Mapping[str, StoredTensor], own: Mapping[str, StoredTensor]) -> None:
    lost = {name: one.quantized for name, one in whole.items() if own[name].quantized is None}
    cut = {name: one for name, one in lost.items() if one is not None}
    for name, one in list(cut.items())[:1]:
        why = " (desc_act)" if one.is_shuffled else ""
        log.warning(
            "%d weights of %s are dequantized, %s the first: the %d inputs that a rank has are "
            "not whole groups of %d%s; fewer ranks (parallelism.tensor) keep them as stored",
            *(len(cut), one.precision.format, name, own[name].shape[-1], one.precision.group, why),
        )
