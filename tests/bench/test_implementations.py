"""The benchmark of models through transformers: turns, ratios, and real engines on a tiny model."""

from pathlib import Path

import pytest
import torch

from bench.cpu.base_comparison.figures import is_lower_better
from bench.cpu.engine.implementations import (
    FULL,
    QUICK,
    Turns,
    answer,
    in_turns,
    make_engine,
    measure_implementations,
    write_qwen3,
)
from bench.cpu.peers.epsilon_pair import Size
from bench.cpu.peers.targets import TARGETS

COMPARED = ("qwen3", "qwen3_moe", "gemma3", "qwen3_5", "deepseek_v3")
TINY = Size(2, 32, vocab=300, heads=4, context=64, kv_heads=2, inner=48)


def test_all_figures_are_measured_on_real_engines() -> None:
    turns = Turns(
        TINY, steps=2, answers=2, prompt=5, answer=6, step_batches=(1, 3), answer_batches=(2,)
    )
    figures = measure_implementations(turns)
    ratios = ["step_to_native_b1", "step_to_native_b3"]
    ratios += [f"{model}_to_generate_b2" for model in COMPARED]
    ratios.append("gemma3_step_to_native_b2")
    for name in ratios:
        median, quartiles = figures[name], figures[f"{name}_quartiles"]
        assert isinstance(median, float)
        assert isinstance(quartiles, list)
        assert 0 < quartiles[0] <= median <= quartiles[1]
    assert [figures[f"{model}_differing_tokens_b2"] for model in COMPARED] == [0] * len(COMPARED)


def test_answers_have_the_length_that_was_asked_for(tmp_path: Path) -> None:
    core = make_engine(write_qwen3(tmp_path, TINY), "transformers", 2)
    assert core.facts["model_implementation"] == "transformers"
    assert core.facts["linears"] == "packed"
    answers = answer(core, [[3, 4, 5], [6, 7, 8]], 7)
    assert [len(tokens) for tokens in answers] == [7, 7]
    assert torch.tensor(answers).max() < TINY.vocab


def test_every_other_turn_is_the_other_way_round() -> None:
    order: list[str] = []
    calls = [lambda: order.append("first"), lambda: order.append("second")]
    taken = [in_turns(calls, turn) for turn in (0, 1)]
    assert order == ["first", "second", "second", "first"]
    assert all(len(seconds) == 2 and min(seconds) >= 0 for seconds in taken)


@pytest.mark.parametrize("turns", [QUICK, FULL])
def test_figures_that_have_a_target_are_measured(turns: Turns) -> None:
    measured = {f"step_to_native_b{batch}" for batch in turns.step_batches}
    measured |= {
        f"{model}_to_generate_b{batch}" for model in COMPARED for batch in turns.answer_batches
    }
    measured |= {f"gemma3_step_to_native_b{batch}" for batch in turns.answer_batches}
    named = {target.figure for target in TARGETS if target.figure.startswith("implementations ")}
    assert named == {f"implementations {name}" for name in measured}
    assert is_lower_better("implementations step_to_native_b8")
    assert not is_lower_better("implementations qwen3_to_generate_b8")
