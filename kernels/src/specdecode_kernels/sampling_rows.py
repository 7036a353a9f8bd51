"""Numbers that say how a request's tokens are chosen, as tensors: what the sampling ops take."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRows:
    """How each request of a batch samples; [B] each, of any stride.

    `is_filtered` is what the host knows of the batch as a whole: where it is false no request has a
    filter, and the work is left out.
    """

    temperature: Tensor  # float, 0 is greedy
    top_k: Tensor  # i64, 0 is off
    top_p: Tensor  # float in (0, 1], 1 is off
    min_p: Tensor  # float in [0, 1], 0 is off
    seeds: Tensor  # i64
    is_filtered: bool

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, for what holds for each."""
        return self.temperature, self.top_k, self.top_p, self.min_p, self.seeds


@dataclass(frozen=True, slots=True, eq=False)
class PenaltyRows:
    """Penalties and biases of a batch; the big tables have one row per request that has any."""

    counts: Tensor  # [states, vocab] f32, of output tokens
    in_prompt: Tensor  # [states, vocab] bool
    bias: Tensor  # [states, vocab] f32
    states: Tensor  # [B] i64, row of the tables; -1 leaves a request's logits as they are
    numbers: Tensor  # [B, 3] f64: repetition, presence, frequency


@dataclass(frozen=True, slots=True, eq=False)
class DraftedNodes:
    """What the nodes behind each request's first one were drafted as."""

    tokens: Tensor  # [B, N - 1] i64
    parents: Tensor | None  # [B, N] i64, the root's is itself; None: node j + 1 hangs on node j
    max_depth: int
