"""Keys and values of drafted tokens during one step."""

import torch
from torch import Tensor

from specdecode_engine.model.kv.kv_cache import make_groups
from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_kernels import LayerKV


class DraftScratch:
    """Keys and values of drafted tokens, by index in the batch; kept out of the pool.

    They are never rounded to the pool's type: nothing reads them after the step.
    """

    def __init__(
        self,
        layer_map: LayerMap,
        batch: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # [layers, batch, rows, kv_heads, dim]
        self.groups = make_groups(layer_map, [(batch, rows)] * len(layer_map.shapes), dtype, device)
        self.num_rows = rows  # of each request
        # [batch, rows, kv_heads, dim] of each layer, and all of them [batch * rows, ...]
        self._layers = tuple(
            (self.groups[group].k[index], self.groups[group].v[index])
            for group, index in layer_map.places
        )
        self.layers = tuple(
            LayerKV(k.flatten(0, 1), v.flatten(0, 1), is_latent=spec.is_latent)
            for (k, v), spec in zip(self._layers, layer_map.layers, strict=True)
        )
        self._stores = tuple(spec.kv_owner == layer for layer, spec in enumerate(layer_map.layers))
        # [batch, 1, rows] bool, for query rows that see all there is
        self.all_shown = torch.ones((batch, 1, rows), dtype=torch.bool, device=device)

    def store(
        self, layer: int, first: int, batch: int, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keep k and v [batch * n, kv_heads, dim] of a layer in rows first .. first + n - 1.

        Returns:
            Keys and values of all rows up to the newest, [batch, first + n, kv_heads, dim].
        """
        keys, values = self._layers[layer]
        end = first + k.shape[0] // batch
        if self._stores[layer]:
            keys[:batch, first:end] = k.view(batch, -1, *k.shape[1:])
            if not self.layers[layer].is_latent:  # whose values are entries of keys
                values[:batch, first:end] = v.view(batch, -1, *v.shape[1:])
        return keys[:batch, :end], values[:batch, :end]
