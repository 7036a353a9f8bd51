"""The sampling rule: noise that is a function, filters against plain formulas, exact penalties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.speculate.tree import link
from specdecode_kernels import TORCH
from specdecode_kernels.torch.sampling import filter_logits, gumbel_noise

CPU = torch.device("cpu")


def noise(seed: int, position: int, vocab: int = 50) -> torch.Tensor:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([position]), torch.arange(vocab))[0]


def test_noise_is_a_function_of_seed_position_and_token_alone() -> None:
    seeds, positions = torch.tensor([3, 3, -9]), torch.tensor([0, 5, 5])
    rows = gumbel_noise(seeds, positions, torch.arange(50))
    assert torch.equal(rows[1], noise(3, 5))
    assert torch.equal(gumbel_noise(seeds, positions, torch.tensor([7, 49])), rows[:, [7, 49]])
    by_row = torch.tensor([[7, 49], [0, 3], [49, 7]])
    assert torch.equal(gumbel_noise(seeds, positions, by_row), rows.gather(1, by_row))
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    assert not torch.equal(noise(1, 5), noise(1 + (1 << 40), 5))


def test_noise_has_the_moments_of_a_gumbel_and_no_correlation() -> None:
    seeds = torch.arange(400).repeat_interleave(5)
    positions = torch.arange(5).repeat(400)
    values = gumbel_noise(seeds, positions, torch.arange(100)).double()
    assert torch.isfinite(values).all()
    assert values.mean().item() == pytest.approx(0.5772, abs=0.015)
    assert values.var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)
    table = values.view(400, 5, 100)
    for left, right in (
        (table[:, 0], table[:, 1]),
        (table[:-1], table[1:]),
        (table[..., :-1], table[..., 1:]),
    ):
        pair = torch.stack([left.flatten(), right.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.02


def test_sampled_tokens_follow_the_target_distribution() -> None:
    """Chi-square over 40 000 positions of one request, against the exact probabilities."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    temperature, count = 0.8, 40_000
    sampler = Sampler(6, StagingBuffer(CPU))
    sampler.open(1, SamplingParams(seed=11, max_tokens=1, temperature=temperature), [0], [])
    positions = torch.arange(count)[None, :]
    tokens = sampler.sample(logits.expand(1, count, 6), sampler.stage([1]), positions)[0]
    expected = torch.softmax(logits / temperature, dim=0) * count
    observed = torch.bincount(tokens, minlength=6)
    chi_square = ((observed - expected) ** 2 / expected).sum().item()
    assert chi_square < 25.7  # 5 degrees of freedom, p = 1e-4


def reference_filter(row: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Keep ids one by one from the likeliest down, as defined."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if top_k:
        order = order[:top_k]
    total = sum(math.exp(row[token]) for token in order)
    kept: set[int] = set()
    mass = 0.0
    for token in order:
        prob = math.exp(row[token]) / total
        best = math.exp(row[order[0]]) / total
        if kept and ((top_p < 1 and mass >= top_p) or prob < min_p * best):
            break
        kept.add(token)
        mass += prob
    return kept


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    row=st.lists(st.integers(-6, 6), min_size=1, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1.0, 0.97, 0.61, 0.13, 0.001]),
    min_p=st.sampled_from([0.0, 0.011, 0.34, 1.0]),
)
def test_filters_keep_what_the_definitions_keep(
    row: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.tensor([row], dtype=torch.float64) * 0.37
    filtered = filter_logits(
        logits, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    )[0]
    kept = {token for token, value in enumerate(filtered.tolist()) if value > -math.inf}
    assert kept == reference_filter(logits[0].tolist(), top_k, top_p, min_p)
    assert all(filtered[token] == logits[0, token] for token in kept)


def test_greedy_and_sampled_rows_in_one_batch_do_not_touch_each_other() -> None:
    sampler = Sampler(20, StagingBuffer(CPU))
    sampler.open(1, SamplingParams(seed=1, max_tokens=1, temperature=0.0), [0], [])
    sampler.open(2, SamplingParams(seed=1, max_tokens=1, temperature=1.0, top_k=5), [0], [])
    logits = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(4))
    positions = torch.tensor([[4, 5, 6], [4, 5, 6]])
    together = sampler.sample(logits, sampler.stage([1, 2]), positions)
    for row, req_index in enumerate((1, 2)):
        batch = sampler.stage([req_index])
        alone = sampler.sample(logits[row : row + 1], batch, positions[row : row + 1])
        assert torch.equal(together[row], alone[0])
    assert torch.equal(together[0], logits[0].argmax(dim=-1))


def test_a_batch_has_top_k_and_top_p_when_one_request_has_both() -> None:
    sampler = Sampler(20, StagingBuffer(CPU))
    for req_index, (temperature, top_k, top_p) in enumerate(
        [(1.0, 5, 1.0), (1.0, 0, 0.5), (0.0, 5, 0.5), (1.0, 5, 0.5)]
    ):
        params = SamplingParams(
            seed=1, max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p
        )
        sampler.open(req_index, params, [0], [])
    apart, both = sampler.stage([0, 1, 2]).params, sampler.stage([0, 3]).params
    assert apart is not None
    assert both is not None
    assert (apart.is_filtered, apart.has_top_k_and_top_p) == (True, False)
    assert (both.is_filtered, both.has_top_k_and_top_p) == (True, True)


def test_penalties_at_a_node_count_the_path_to_it() -> None:
    """A chain's nodes choose what plain decoding would choose after committing the same tokens."""
    params = SamplingParams(
        seed=0,
        max_tokens=9,
        temperature=0.0,
        repetition_penalty=1.7,
        presence_penalty=0.4,
        frequency_penalty=0.9,
        logit_bias={3: 1.5, 7: -2.0},
    )
    logits = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(9)) * 2
    path = [5, 5, 3]
    drafted = Sampler(12, StagingBuffer(CPU))
    drafted.open(1, params, [1, 2], [4])
    chain = Draft(DraftShape.chain(3), torch.tensor([path]))
    nodes = drafted.sample(logits, drafted.stage([1]), torch.tensor([[3, 4, 5, 6]]), chain)
    for count in range(4):
        plain = Sampler(12, StagingBuffer(CPU))
        plain.open(1, params, [1, 2], [4])
        batch = plain.stage([1])
        if count:
            plain.commit(batch, torch.tensor([path]), torch.tensor([count - 1]))
        expected = plain.sample(logits[:, count : count + 1], batch, torch.tensor([[3 + count]]))
        assert nodes[0, count] == expected[0, 0]


def test_a_reused_slot_remembers_nothing() -> None:
    sampler = Sampler(8, StagingBuffer(CPU))
    logits = torch.tensor([[[1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]]])
    sampler.open(1, SamplingParams(seed=0, max_tokens=1, logit_bias={0: 50.0}), [0], [])
    assert sampler.sample(logits, sampler.stage([1]), torch.tensor([[2]])).item() == 0
    sampler.open(1, SamplingParams(seed=0, max_tokens=1, temperature=0.0), [0], [])
    assert sampler.sample(logits, sampler.stage([1]), torch.tensor([[2]])).item() == 2


def test_penalties_in_a_tree_count_the_ancestors_alone() -> None:
    """Two branches below the root: a node's choice is that of plain decoding along its branch."""
    params = SamplingParams(seed=0, max_tokens=9, temperature=0.0, frequency_penalty=1.3)
    logits = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(2)) * 2
    tokens = torch.tensor([[5, 7, 5, 3]])
    tree = link(TORCH, torch.tensor([[0, 0, 0, 1, 2]]), num_steps=2)
    draft = Draft(DraftShape(2, 2, 5), tokens, tree)
    sampler = Sampler(12, StagingBuffer(CPU))
    sampler.open(1, params, [1, 2], [4])
    nodes = sampler.sample(logits, sampler.stage([1]), torch.tensor([[3, 4, 4, 5, 5]]), draft)
    for node, path in enumerate(([], [5], [7], [5, 5], [7, 3])):
        plain = Sampler(12, StagingBuffer(CPU))
        plain.open(1, params, [1, 2], [4, *path])
        expected = plain.sample(logits[:, node : node + 1], plain.stage([1]), torch.tensor([[0]]))
        assert nodes[0, node] == expected
