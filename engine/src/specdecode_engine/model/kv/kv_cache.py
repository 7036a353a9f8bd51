"""Keys and values of all requests: pages, of which layers with a window may have fewer."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_kernels import (
    TORCH,
    AttentionMetadata,
    AttentionParams,
    Backend,
    FusedKV,
    KvScale,
    LayerKV,
    TreeKV,
)


@dataclass(frozen=True, slots=True, eq=False)
class KVGroup:
    """Keys and values of the layers of one group, in one tensor each.

    In the KV cache a row is a row of its pages; in a draft's scratch it is a request's drafted row.
    Values of multi-head latent attention are a view of the keys.
    """

    k: Tensor  # [layers, ..., kv_heads, k_head_dim]
    v: Tensor  # [layers, ..., kv_heads, v_head_dim]
    is_latent: bool = False

    @property
    def own_v(self) -> Tensor:
        """The values that are not entries of keys: as `v`, or [..., 0]."""
        return self.v[..., :0] if self.is_latent else self.v

    @property
    def num_bytes(self) -> int:
        return self.k.nbytes + self.own_v.nbytes

    def layer(self, index: int, scale: KvScale) -> LayerKV:
        """Return one layer; values that are entries of keys have the scale of keys."""
        scale = KvScale(scale.k, scale.k) if self.is_latent else scale
        return LayerKV(self.k[index], self.v[index], scale, self.is_latent)


@dataclass(frozen=True, slots=True, eq=False)
class WindowPool:
    """The pages of layers with a sliding window, where these have fewer than other layers.

    `of_page` [pages] i64 has the window page of each page; it changes between steps. Pages that no
    row of a batch sees through its window may lead to window page 0.
    """

    of_page: Tensor
    pages: int  # window page 0 included


PlacedRows = tuple[Tensor, AttentionMetadata]
"""Pool rows of the query rows [rows] i64, and what these attend to."""
RotaryRows = tuple[Tensor, Tensor]
"""Cosines and sines of the angles of rows, each [rows, angles] f32."""


class KVCache:
    """Pages of keys and values, all layers; page 0 belongs to nobody and takes padding rows.

    The cache knows how it is written and read: its backend and, where it is float8, its scales.
    """

    def __init__(
        self,
        layer_map: LayerMap,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        ops: Backend = TORCH,
        scales: Items[KvScale] = (),
        windows: WindowPool | None = None,
    ) -> None:
        """Allocate `pages` pages, page 0 included, and those of `windows`.

        Args:
            scales: of the layers of a float8 cache; by default 1.
        """
        if pages < 2:
            raise ValueError(f"a pool of {pages} pages holds nothing besides page 0; give it 2")
        self.pages = pages
        self.page_size = page_size
        self.dtype = dtype
        self.ops = ops
        self._windows = windows
        self._in_windows = tuple(
            windows is not None and shape.reach is not None for shape in layer_map.shapes
        )
        counts = [windows.pages if windows and own else pages for own in self._in_windows]
        rows = [(count * page_size,) for count in counts]
        self.groups = make_groups(layer_map, rows, dtype, device)
        # Views, created once: every layer of every forward pass uses its own.
        self._layers = tuple(
            self.groups[group].layer(index, scales[spec.kv_owner] if scales else KvScale())
            for spec, (group, index) in zip(layer_map.layers, layer_map.places, strict=True)
        )
        self._stored = tuple(
            replace(kv, v=kv.v[..., :0], is_latent=False) if kv.is_latent else kv
            for kv in self._layers
        )
        self._stores = tuple(spec.kv_owner == layer for layer, spec in enumerate(layer_map.layers))
        self._layer_in_windows = tuple(self._in_windows[spec.group] for spec in layer_map.layers)
        # Of layers that may be computed in one call, which have keys and values of their own.
        self._fusible = tuple(
            FusedKV(kv) if stores and ops.fuse_layer is not None else None
            for kv, stores in zip(self._layers, self._stores, strict=True)
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages, page 0 included."""
        return sum(group.num_bytes for group in self.groups)

    def place(
        self, slot_mapping: Tensor, layout: AttentionMetadata
    ) -> tuple[PlacedRows, PlacedRows]:
        """Return rows as they lie in pages, and as they lie in window pages.

        Both arguments are in pages; `in_windows` is the index of what a layer reads.
        """
        placed = slot_mapping, layout
        if self._windows is None:
            return placed, placed
        return placed, (self._window_rows(slot_mapping), self.place_layout(layout)[1])

    def place_layout(self, layout: AttentionMetadata) -> tuple[AttentionMetadata, ...]:
        """As `place`, of rows that are read alone."""
        if self._windows is None:
            return layout, layout
        table = replace(layout, page_table=self._windows.of_page[layout.page_table])
        return layout, table

    def fusible_kvs(self, layers: range) -> list[FusedKV]:
        """Return those of the first of `layers` that one call may compute, placed alike."""
        kvs, in_windows = list[FusedKV](), self._layer_in_windows
        for layer in layers:
            kv = self._fusible[layer]
            if kv is None or in_windows[layer] is not in_windows[layers.start]:
                break
            kvs.append(kv)
        return kvs

    def in_windows(self, layer: int) -> bool:
        """Whether the rows of a layer lie in window pages."""
        return self._layer_in_windows[layer]

    def store(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k and v [n, kv_heads, dim] to the rows slot_mapping [n] i64 of a layer.

        Nothing is written for a layer that reads the keys and values of another.
        """
        if self._stores[layer]:
            kv = self._stored[layer]
            self.ops.store_kv(kv, slot_mapping, k, v[..., : kv.v.shape[2]])

    def turn_and_store(
        self, layer: int, slot_mapping: Tensor, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryRows
    ) -> tuple[Tensor, Tensor]:
        """Turn q and k by their rows' angles, store k and v as `store` does; return q and k."""
        if not self._stores[layer]:
            return self.ops.apply_rope(q, k, *rotary)
        kv = self._stored[layer]
        values = v[..., : kv.v.shape[2]]
        return self.ops.rope_and_store_kv(kv, slot_mapping, q, k, values, *rotary)

    def as_stored(
        self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return k and v as they are read back from the rows where they were just stored.

        They are unchanged except in float8 pools, which hold them rounded.
        """
        if self.dtype == k.dtype:
            return k, v
        return self.ops.load_kv(self._layers[layer], slot_mapping, k.dtype)

    def clear(self, slot_mapping: Tensor) -> None:
        """Make the rows slot_mapping [n] i64 of every layer zero."""
        for group, in_windows in zip(self.groups, self._in_windows, strict=True):
            slots = self._window_rows(slot_mapping) if in_windows else slot_mapping
            for rows in (group.k, group.own_v):
                _as_bits(rows).index_fill_(1, slots, 0)

    def clear_layer(self, layer: int, slot_mapping: Tensor) -> None:
        """Make the rows slot_mapping [n] i64 of one layer zero."""
        slots = self._window_rows(slot_mapping) if self.in_windows(layer) else slot_mapping
        for rows in (self._stored[layer].k, self._stored[layer].v):
            _as_bits(rows).index_fill_(0, slots, 0)

    def compact(
        self, page_table: Tensor, req_indices: Tensor, lengths: Tensor, path: Tensor
    ) -> None:
        """Move the rows of accepted paths in every layer to where chains would have put them.

        Args:
            page_table: [requests, pages] i64.
            req_indices: [B] i64, rows of the table.
            lengths: [B] i64, rows before the nodes.
            path: [B, path_length] i64, nodes, ascending.
        """
        tables = (page_table, req_indices), (page_table, req_indices)
        if self._windows is not None:
            of_window = self._windows.of_page[page_table[req_indices]]
            own = torch.arange(len(req_indices), device=req_indices.device)
            tables = tables[0], (of_window, own)
        for group, in_windows in zip(self.groups, self._in_windows, strict=True):
            # Kernels move keys and values of one width, or keys alone.
            ops = self.ops if group.k.shape == group.v.shape or group.is_latent else TORCH
            ops.compact_kv(group.k, group.own_v, *tables[in_windows], lengths, path, self.page_size)

    def attend(
        self,
        layer: int,
        q: Tensor,
        layout: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams,
    ) -> Tensor:
        """Attend from q [rows, q_heads, dim] to what is shown of a layer, and to tree KV."""
        return self.ops.attend(q, self._layers[layer], layout, tree_kv, params)

    def attend_with_lse(
        self,
        layer: int,
        q: Tensor,
        layout: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams,
    ) -> tuple[Tensor, Tensor]:
        """As `attend`, and the log-sum-exp of each row's scores [rows, q_heads]."""
        return self.ops.attend_with_lse(q, self._layers[layer], layout, tree_kv, params)

    def _window_rows(self, slot_mapping: Tensor) -> Tensor:
        """Map rows in pages to rows in window pages."""
        assert self._windows is not None
        pages = self._windows.of_page[slot_mapping // self.page_size]
        return pages * self.page_size + slot_mapping % self.page_size


def kv_bytes(layer_map: LayerMap, rows: int, dtype: torch.dtype) -> int:
    """Return the bytes of the keys and values of `rows` tokens in all layers."""
    return layer_map.entries_per_token * rows * dtype.itemsize


def make_groups(
    layer_map: LayerMap, rows: Items[tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> tuple[KVGroup, ...]:
    """Allocate what every owner of keys and values stores, [layers, *rows, kv_heads, dim].

    Args:
        rows: of each group.
    """
    groups = []
    for shape, owners, outer_rows in zip(layer_map.shapes, layer_map.owners, rows, strict=True):
        outer = (len(owners), *outer_rows, shape.kv_heads)
        k = _zeros((*outer, shape.k_head_dim), dtype, device)
        latents = k[..., : shape.v_head_dim] if shape.is_latent else None
        v = _zeros((*outer, shape.v_head_dim), dtype, device) if latents is None else latents
        groups.append(KVGroup(k, v, shape.is_latent))
    return tuple(groups)


def _as_bits(rows: Tensor) -> Tensor:
    """View float8, which no device fills, as bits."""
    return rows.view(torch.uint8) if rows.dtype.itemsize == 1 else rows


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype.itemsize == 1:
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
