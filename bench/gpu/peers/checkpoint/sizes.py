"""Shapes of the checkpoint: that of Llama-3.1-8B, and two for machines without a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """Shape of a target; its EAGLE-3 head has one layer of the same shape."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    cycle: int  # tokens that the target emits, and the head's vocabulary
    code: int  # dimensions of a token's embedding that the head carries

    @property
    def parameters(self) -> int:
        """Of the target."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + (
            2 * self.vocab * self.hidden
        )

    @property
    def head_parameters(self) -> int:
        """Of one EAGLE-3 head."""
        attention = self.hidden * self.head_dim * (3 * self.heads + 4 * self.kv_heads)
        maps = 3 * self.hidden * (self.hidden + self.inner) + self.cycle * self.hidden
        return attention + maps

    def bytes_of(self, heads: int) -> int:
        """Return the bytes of a target and so many heads in bfloat16."""
        return 2 * (self.parameters + heads * self.head_parameters)


SIZE_8B = CheckpointSize(
    "8b", 32, 4096, 14336, heads=32, kv_heads=8, head_dim=128, vocab=128256, cycle=32000, code=512
)
TINY = CheckpointSize(
    "tiny", 8, 256, 256, heads=8, kv_heads=8, head_dim=32, vocab=1024, cycle=512, code=128
)
HALF_B = CheckpointSize(
    "540m", 16, 1536, 4608, heads=24, kv_heads=8, head_dim=64, vocab=32000, cycle=8192, code=256
)
SIZES = {one.name: one for one in (SIZE_8B, TINY, HALF_B)}
