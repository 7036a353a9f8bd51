"""Where each layer with attention keeps its keys and values: owner, group, head sizes and reach.

Layers are counted without the recurrent ones between them, which have states instead.

Layers of one shape and reach form a group, which has one tensor of keys and one of values. A
layer without keys and values of its own reads those of its owner and stores nothing (Gemma 3n and
4: `num_kv_shared_layers` layers at the end read the last earlier layer of their type).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"
CONVOLUTION = "conv"
RECURRENT = frozenset({LINEAR, CONVOLUTION})
"""Types of layers without keys and values."""


class LayerMapError(ValueError):
    """A config describes keys and values that the cache cannot hold; the message has the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one layer stores per token, and how many positions it sees.

    `sliding_window` is a number of positions, the layer's own included; None: all of them. Of
    `attention_chunk_size` positions in a row, one sees those before it and itself (Llama 4).
    """

    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    is_latent: bool = False  # values are the first entries of keys: multi-head latent attention

    @property
    def reach(self) -> int | None:
        """The most positions that one sees, its own included; None: all of them."""
        return self.sliding_window or self.attention_chunk_size

    @property
    def width(self) -> int:
        """Entries of the keys and values of one token."""
        return self.kv_heads * (self.k_head_dim + (0 if self.is_latent else self.v_head_dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer as the cache holds it; sizes are those of its owner."""

    kv_owner: int  # the layer whose keys and values it reads: itself, or an earlier one
    group: int
    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    is_latent: bool = False


@dataclass(frozen=True)
class LayerMap:
    """Every layer with attention; `shapes` are those of the groups, in order of first use."""

    layers: tuple[LayerSpec, ...]
    shapes: tuple[LayerShape, ...]

    @classmethod
    def build(cls, shapes: Sequence[LayerShape], owners: Sequence[int] | None = None) -> "LayerMap":
        """Group layers by shape.

        Args:
            shapes: of each layer.
            owners: of each layer, where some share keys and values.

        Raises:
            LayerMapError: a layer would read keys and values that no earlier layer stores.
        """
        owners = range(len(shapes)) if owners is None else owners
        groups: dict[LayerShape, int] = {}
        layers = []
        for layer, (owner, shape) in enumerate(zip(owners, shapes, strict=True)):
            if not 0 <= owner <= layer or owners[owner] != owner or shapes[owner] != shape:
                raise LayerMapError(
                    f"layer {layer} reads the keys and values of layer {owner}, which must be an "
                    "earlier layer of the same head sizes and reach with keys and values of its "
                    "own; correct layer_types and num_kv_shared_layers"
                )
            layers.append(
                LayerSpec(
                    kv_owner=owner,
                    group=groups.setdefault(shape, len(groups)),
                    kv_heads=shape.kv_heads,
                    k_head_dim=shape.k_head_dim,
                    v_head_dim=shape.v_head_dim,
                    sliding_window=shape.sliding_window,
                    attention_chunk_size=shape.attention_chunk_size,
                    is_latent=shape.is_latent,
                )
            )
        return cls(tuple(layers), tuple(groups))

    @classmethod
    def uniform(
        cls,
        layers: int,
        kv_heads: int,
        head_dim: int,
        windows: Sequence[int | None] = (),
        v_head_dim: int | None = None,
    ) -> "LayerMap":
        """Layers that differ in nothing but their windows.

        Args:
            windows: of each layer; empty: none has one.
            v_head_dim: entries of a head of values; None: as many as of keys.
        """
        return cls.build(
            [
                LayerShape(
                    kv_heads=kv_heads,
                    k_head_dim=head_dim,
                    v_head_dim=v_head_dim or head_dim,
                    sliding_window=window,
                )
                for window in windows or [None] * layers
            ]
        )

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """Layers of each group that store keys and values, in order."""
        by_group: tuple[list[int], ...] = tuple([] for _ in self.shapes)
        for layer, spec in enumerate(self.layers):
            if spec.kv_owner == layer:
                by_group[spec.group].append(layer)
        return tuple(map(tuple, by_group))

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Of each layer, the group and the index in it of the keys and values that it reads."""
        return tuple(
            (spec.group, self.owners[spec.group].index(spec.kv_owner)) for spec in self.layers
        )

    @property
    def head_dims(self) -> tuple[int, int]:
        """Entries of the widest head of keys, and of the widest one of values."""
        k_dims, v_dims = zip(
            *((one.k_head_dim, one.v_head_dim) for one in self.shapes), strict=True
        )
        return max(k_dims), max(v_dims)

    @property
    def window(self) -> int | None:
        """Positions that the widest sliding window or chunk has; None without one.

        A chunk's rows lie within a window of its size, so that its pages are freed and found for
        prefixes as those of such a window.
        """
        return max((shape.reach for shape in self.shapes if shape.reach), default=None)

    @property
    def entries_per_token(self) -> int:
        """Entries of the keys and values of one token in all layers."""
        return sum(shape.width * len(layers) for shape, layers in self._stored())

    @property
    def windowed_entries_per_token(self) -> int:
        """Entries of one token in the layers with a sliding window or chunks."""
        stored = self._stored()
        return sum(shape.width * len(layers) for shape, layers in stored if shape.reach)

    def _stored(self) -> Iterator[tuple[LayerShape, tuple[int, ...]]]:
        """Shapes of the groups and the layers of each that store keys and values."""
        return zip(self.shapes, self.owners, strict=True)


def shared_owners(layer_types: Sequence[str], num_shared: int) -> list[int]:
    """Return the owner of each layer if the last `num_shared` layers store nothing.

    Such a layer reads the last layer of its type among those that store keys and values.

    Raises:
        LayerMapError: none of those has the type.
    """
    layers = len(layer_types)
    if not 0 <= num_shared < max(layers, 1):
        raise LayerMapError(
            f"num_kv_shared_layers is {num_shared}; it must be at least 0 and less than the "
            f"{layers} layers of the model"
        )
    first = layers - num_shared
    last_of_type = {name: layer for layer, name in enumerate(layer_types[:first])}
    missing = sorted(set(layer_types[first:]) - set(last_of_type))
    if missing:
        raise LayerMapError(
            f"num_kv_shared_layers is {num_shared}, but none of the first {first} layers is of "
            f"type {', '.join(missing)}; correct layer_types"
        )
    return [*range(first), *(last_of_type[name] for name in layer_types[first:])]
