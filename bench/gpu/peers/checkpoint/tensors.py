"""Weights of target and EAGLE-3 head, so that the greedy token after t is the successor of t.

Layers of the target write little into the residual stream, and the output row of a token's
successor is the token's embedding, so the successor has by far the largest logit in bfloat16, too.

The head's attention sees its own position only, as queries equal keys. It carries `code` dimensions
of the token's embedding and subtracts those of the token before, so the successors that its output
rows name do not depend on the number of the draft step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bench.gpu.peers.checkpoint.sizes import CheckpointSize

NOISE = 1e-4  # no weight is exactly 0
EPSILON = 0.1  # what layers of the target write
HEAD_EPSILON = 1e-3
QUERY = 2.0
ROWS_AT_ONCE = 16384


class TensorMaker:
    """Makes the tensors of one checkpoint on a device, from one random generator."""

    def __init__(self, size: CheckpointSize, device: torch.device, seed: int = 0) -> None:
        self._size, self._device = size, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.embedding = self._embedding()

    def output_rows(self, successors: Sequence[int]) -> Tensor:
        """Return the target's head, [vocab, hidden]: tokens above the cycle follow themselves."""
        size = self._size
        rows = torch.arange(size.vocab, device=self._device)
        rows[: size.cycle] = torch.tensor(successors, device=self._device)
        made = torch.empty_like(self.embedding)
        made[rows] = self.embedding * size.hidden**-0.5
        return made

    def layer(self, prefix: str) -> dict[str, Tensor]:
        """Return one layer of the target."""
        size = self._size
        hidden, width, keys = size.hidden, size.heads * size.head_dim, self._key_width
        return {
            f"{prefix}.input_layernorm.weight": self._ones(),
            f"{prefix}.self_attn.q_proj.weight": self._random(width, hidden),
            f"{prefix}.self_attn.k_proj.weight": self._random(keys, hidden),
            f"{prefix}.self_attn.v_proj.weight": self._random(keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": self._random(hidden, width, EPSILON),
            **self._mlp(prefix, EPSILON),
        }

    def final_norm(self) -> Tensor:
        """Return the weight of the last norm."""
        return self._ones()

    def eagle3(self, drafted: Sequence[int]) -> dict[str, Tensor]:
        """Return a head that drafts `drafted[t]` after t, in the published layout."""
        size = self._size
        hidden = size.hidden
        return {
            "midlayer.input_layernorm.weight": self._ones(),
            "midlayer.hidden_norm.weight": self._ones(),
            **self._head_attention(),
            **self._mlp("midlayer", HEAD_EPSILON),
            "fc.weight": self._random(hidden, 3 * hidden, NOISE),
            "norm.weight": self._ones(),
            "lm_head.weight": self._draft_rows(drafted),
            "d2t": torch.zeros(size.cycle, dtype=torch.int64),
            "t2d": torch.arange(size.vocab) < size.cycle,
        }

    @property
    def _key_width(self) -> int:
        return self._size.kv_heads * self._size.head_dim

    def _head_attention(self) -> dict[str, Tensor]:
        """Return attention whose first key heads carry the token, the next ones what was before."""
        size, code = self._size, self._size.code
        hidden, dim = size.hidden, size.head_dim
        if code % dim or 2 * code > self._key_width:
            raise ValueError(
                f"code {code}: use a multiple of {dim}, {self._key_width // 2} at most"
            )
        q = self._noise(size.heads * dim, 2 * hidden)
        k, v = self._noise(self._key_width, 2 * hidden), self._noise(self._key_width, 2 * hidden)
        o = self._noise(hidden, size.heads * dim)
        own = torch.arange(dim, device=self._device)
        for weight in (q, k):
            for first in range(0, len(weight), dim):
                weight[first + own, code + own] = QUERY
        codes = torch.arange(code, device=self._device)
        v[codes, codes] = 1.0
        v[code + codes, hidden + codes] = 1.0
        group = size.heads // size.kv_heads
        place = codes // dim * group * dim + codes % dim
        o[codes, place] = 1.0
        o[codes, code * group + place] = -((code / hidden) ** 0.5)  # it was normed
        names = {"q_proj": q, "k_proj": k, "v_proj": v, "o_proj": o}
        return {f"midlayer.self_attn.{name}.weight": weight for name, weight in names.items()}

    def _mlp(self, prefix: str, epsilon: float) -> dict[str, Tensor]:
        hidden, inner = self._size.hidden, self._size.inner
        return {
            f"{prefix}.post_attention_layernorm.weight": self._ones(),
            f"{prefix}.mlp.gate_proj.weight": self._random(inner, hidden),
            f"{prefix}.mlp.up_proj.weight": self._random(inner, hidden),
            f"{prefix}.mlp.down_proj.weight": self._random(hidden, inner, epsilon),
        }

    def _draft_rows(self, drafted: Sequence[int]) -> Tensor:
        size, code = self._size, self._size.code
        made = self._noise(size.cycle, size.hidden)
        rows = torch.tensor(drafted, device=self._device)
        made[rows, :code] = self.embedding[: size.cycle, :code] * code**-0.5
        return made

    def _embedding(self) -> Tensor:
        """Return rows whose first `code` dimensions, and the others, have a mean square of 1."""
        code = self._size.code
        made = self._normal(self._size.vocab, self._size.hidden)
        for rows in torch.split(made, ROWS_AT_ONCE):
            for part in (rows[:, :code], rows[:, code:]):
                wide = part.float()
                part.copy_(wide * wide.square().mean(1, keepdim=True).rsqrt())
        return made

    def _random(self, rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return self._normal(rows, columns).mul_(scale * columns**-0.5)

    def _noise(self, rows: int, columns: int) -> Tensor:
        return self._normal(rows, columns).mul_(NOISE)

    def _normal(self, rows: int, columns: int) -> Tensor:
        made = torch.empty(rows, columns, dtype=torch.bfloat16, device=self._device)
        return made.normal_(generator=self._generator)

    def _ones(self) -> Tensor:
        return torch.ones(self._size.hidden, dtype=torch.bfloat16, device=self._device)
