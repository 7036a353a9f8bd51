"""What a decode step takes on three machines; each formula with its source."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

MISSED_AT_MOST = 64  # rows per request: half the life of a request of 128 tokens


@dataclass(frozen=True, slots=True)
class Profile:
    """True seconds of steps; `target_s` takes the rows that go through the target."""

    name: str
    target_s: Callable[[int], float]
    draft_step_s: Callable[[int], float]  # takes the batch size
    kv_token_s: float
    draft_row_s: float  # of a row that the draft has missed and catches up on
    late_steps: int  # results that are still on their way when the next step is planned
    drafts_blocks: bool = False  # `draft_step_s` is then the time of the whole block

    def seconds(self, batch_size: int, num_steps: int, kv_tokens: int) -> float:
        """Expect the time of a step."""
        rows = batch_size * (num_steps + 1)
        drafting_s = self.drafting_s(batch_size, num_steps)
        return self.target_s(rows) + drafting_s + self.kv_token_s * kv_tokens

    def drafting_s(self, batch_size: int, num_steps: int) -> float:
        """Expect the time of drafting alone."""
        forwards = min(num_steps, 1) if self.drafts_blocks else num_steps
        return forwards * self.draft_step_s(batch_size)

    def catching_up_s(self, batch_size: int, missed_steps: int) -> float:
        """Expect how much longer the first draft after steps without one takes."""
        return self.draft_row_s * batch_size * min(missed_steps, MISSED_AT_MOST)


def h100_dense_8b() -> Profile:
    """Llama-3.1-8B on one H100.

    Coefficients that the simulator of arXiv 2601.11580 fits to vLLM: 5.886 ms, 21.01 µs per token
    and 39.26 ns per token of KV; 0.3 ms for the host, 0.3 ms per draft step. An EAGLE layer has a
    20th of the model's matrices, so a missed row takes a 20th of a row.
    """
    return Profile(
        "h100_dense_8b",
        lambda rows: 6.186e-3 + 21.01e-6 * rows,
        lambda batch_size: 0.3e-3,
        39.26e-9,
        1.0e-6,
        late_steps=1,
    )


def cpu_82m() -> Profile:
    """A Llama of 82 M parameters in bfloat16 on one core (AMD Zen 5, AVX512-BF16), measured.

    An eager loop with packed linear layers took 7.5, 8.1, 9.8 and 13.2 ms for 1, 4, 8 and 16 rows;
    beyond, the time of the linear layers alone (3.26 ms at 16 rows, 5.56 at 32) is extrapolated
    linearly. A draft step took 0.57 ms at one row and is assumed to grow alike. KV is read at
    38 GB/s.
    """
    rows = (1, 4, 8, 16, 32)
    milliseconds = (7.5, 8.1, 9.8, 13.2, 22.5)

    def target_s(count: int) -> float:
        place = min(max(bisect_right(rows, count) - 1, 0), len(rows) - 2)
        slope = (milliseconds[place + 1] - milliseconds[place]) / (rows[place + 1] - rows[place])
        return 1e-3 * (milliseconds[place] + slope * (count - rows[place]))

    return Profile(
        "cpu_82m",
        target_s,
        lambda batch_size: 0.57e-3 * target_s(batch_size) / target_s(1),
        36_864 / 38e9,
        0.044e-3,
        late_steps=0,
    )


def moe() -> Profile:
    """A mixture of experts as large as Qwen3-30B-A3B (128 experts, 8 per token) on one H100.

    A forward reads an expert's weights if any of its rows needs it: rows that choose
    independently touch 128 (1 − (1 − 8/128)^rows) experts, 0.453 GB each over all layers, plus
    2.4 GB that every forward reads, at 2.35 TB/s (78 % of what a copy reaches, as in the dense
    fit). Neighbouring tokens share experts, so this is the expensive end: at batch 1 a row more
    costs nearly a token more, at batch 64 all experts are read anyway. 1.5 ms of launches and host,
    and 6.6 GFLOP a row at half the dense efficiency, are assumptions.
    """

    def target_s(rows: int) -> float:
        touched = 128.0 * (1.0 - (1.0 - 8.0 / 128.0) ** rows)
        return 1.5e-3 + (2.4 + 0.453 * touched) / 2350.0 + 17.3e-6 * rows

    return Profile("moe", target_s, lambda batch_size: 0.3e-3, 33e-9, 1.0e-6, late_steps=1)


def all_profiles() -> tuple[Profile, ...]:
    """Every machine, in the order of the report."""
    return (h100_dense_8b(), cpu_82m(), moe())
