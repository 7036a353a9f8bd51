"""`python -m bench.cpu.ngram`: NGRAM next to plain decoding; the last line is JSON.

The targets are the example model and one of 82 million random weights. Their output is scripted: an
edit of code that repeats the prompt with some tokens changed, a text in which no token occurs
twice, at batch 1 and 8, and one that begins to repeat its prompt half way.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from bench.cpu.ngram.memory import memory_after_inserts
from bench.cpu.ngram.scripted_target import ScriptedSampler, answer, build_scripted, submit
from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, write_pair
from checks.harness.machine import processor_model
from checks.harness.role import compute_prompts, spread
from specdecode_api.boot import NgramBoot
from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.ngram.proposer import LONGEST_INTERVAL
from specdecode_engine.speculate.ngram.sources import DraftLimits
from specdecode_engine.speculate.ngram.texts import text_maker
from specdecode_engine.steps import launch
from specdecode_engine.steps.draft_sources import StepDrafts, plan_drafts

TARGET = Path(__file__).resolve().parents[3] / "examples" / "models" / "target"
PROMPT, ANSWER, NUM_STEPS = 200, 200, 7
REPEATS, REPEATS_82M = 9, 3
STEP_REPEATS = 12  # of texts without repetition
BATCH_SIZES = (1, 8)
EDIT_CHANCE = 0.05  # of a token of the answer
DEPTH, CONTEXT, STEPS = 12, 4000, 2000  # of the time of sources

SOURCES = ("suffix", "prompt", "trie")
BY_GOODPUT = f"{SOURCES[0]}, goodput"  # the others have static draft steps
PLAIN, CONTROL = "plain", "plain again"  # their difference is the error of the measurement
DRAFTING = "drafting"
Engines = dict[str, tuple[EngineCore, ScriptedSampler]]


def main() -> int:
    """Measure all of it, and print the figures."""
    torch.set_num_threads(1)
    figures: dict[str, object] = {
        "processor": processor_model(),
        "million_inserts": memory_after_inserts(),
        "us_per_request_and_step": _source_times(random.Random(1)),
        "example model": _compare_on(TARGET, REPEATS),
    }
    with tempfile.TemporaryDirectory() as name:
        folder, _ = write_pair(Path(name), SIZE_82M, STRONG)
        figures["82 million parameters"] = _compare_on(folder, REPEATS_82M)
    print(json.dumps(figures))
    return 0


def _compare_on(target: Path, repeats: int) -> dict[str, Mapping[str, object]]:
    """Return the gain of each source over plain decoding, for each text."""
    engines = {source: _engine(target, source) for source in (PLAIN, CONTROL, *SOURCES)}
    searching = {source: engines[source] for source in SOURCES}
    searching[BY_GOODPUT] = _engine(target, BY_GOODPUT)
    vocab = engines[PLAIN][0].context.target.config.vocab_size
    rng = random.Random(1)
    unique = _without_repetition(rng, vocab)
    return {
        "edit": _compare_answers(engines, _edit(rng, vocab), repeats),
        "repetition after half": _compare_answers(engines, _late_copy(unique), repeats),
        **{
            f"no repetition, batch {size}": _compare_steps(searching, unique, size)
            for size in BATCH_SIZES
        },
    }


def _engine(target: Path, source: str) -> tuple[EngineCore, ScriptedSampler]:
    if source in (PLAIN, CONTROL):
        return build_scripted(target, {})
    steps: dict[str, object] = {"num_steps": NUM_STEPS}
    if source == BY_GOODPUT:
        source, steps = SOURCES[0], {"policy": "goodput"}
    return build_scripted(target, {"algorithm": "NGRAM", "ngram": {"source": source}, **steps})


def _edit(rng: random.Random, vocab: int) -> tuple[int, ...]:
    code = [rng.randrange(vocab) for _ in range(PROMPT)]
    edited = [rng.randrange(vocab) if rng.random() < EDIT_CHANCE else token for token in code]
    return (*code, *edited[:ANSWER])


def _without_repetition(rng: random.Random, vocab: int) -> tuple[int, ...]:
    return tuple(rng.sample(range(vocab), min(PROMPT + ANSWER, vocab)))


def _late_copy(unique: tuple[int, ...]) -> tuple[int, ...]:
    """Return a text whose answer repeats the prompt from its middle on."""
    middle = len(unique) * 3 // 4
    return unique[:middle] + unique[: len(unique) - middle]


def _compare_answers(
    engines: Engines, text: tuple[int, ...], repeats: int
) -> dict[str, list[float]]:
    """Return by how much each source is faster than plain decoding; all within each repeat."""
    seconds: dict[str, list[float]] = {source: [] for source in engines}
    sources = list(engines)
    for repeat in range(repeats + 1):  # the first one warms up
        sources.append(sources.pop(0))  # none of them always follows the same one
        for source in sources:
            core, sampler = engines[source]
            started = time.process_time()
            answer(core, sampler, text, len(text) // 2)
            if repeat:
                seconds[source].append(time.process_time() - started)
    return _gains(seconds)


def _compare_steps(
    engines: Engines, text: tuple[int, ...], batch_size: int
) -> dict[str, dict[str, float]]:
    """Return the same for text that nothing is drafted of, next to the same engine without drafts.

    Two engines without drafts differ by percents, by where their weights lie. The steps of a turn
    are the same in each repeat, and the least time counts: others were disturbed by other
    processes, which makes steps of half a millisecond twice as long.
    """
    return {
        source: compare_modes(*engine, text, batch_size, STEP_REPEATS)
        for source, engine in engines.items()
    }


def compare_modes(
    core: EngineCore,
    sampler: ScriptedSampler,
    text: tuple[int, ...],
    batch_size: int,
    repeats: int,
) -> dict[str, float]:
    """Return the gains, and the share of the time of a step without drafts that planning adds."""
    plain = None, StaticPolicy(0)
    modes = {
        PLAIN: plain,
        CONTROL: plain,
        DRAFTING: (core.context.proposer, core.scheduler.drafting.policy),
    }
    turns: dict[str, list[list[Turn]]] = {mode: [] for mode in modes}
    clock = PlanningClock()
    with patch.object(launch, "plan_drafts", clock):
        for _ in range(repeats + 1):
            for mode in random.sample(list(modes), len(modes)):
                proposer, core.scheduler.drafting.policy = modes[mode]
                core.context = replace(core.context, proposer=proposer)
                submit(core, sampler, text, len(text) // 2, batch_size)
                turns[mode].append(list(_time_turns(core, clock)))
    proposer, core.scheduler.drafting.policy = modes[DRAFTING]
    core.context = replace(core.context, proposer=proposer)
    least = {mode: _sum_of_least(found) for mode, found in turns.items()}
    gains = {mode: least[PLAIN].steps_s / least[mode].steps_s for mode in (CONTROL, DRAFTING)}
    added_s = least[DRAFTING].planning_s - least[PLAIN].planning_s
    found = {**gains, "share": added_s / least[PLAIN].steps_s}
    return {name: round(figure, 4) for name, figure in found.items()}


class Turn(NamedTuple):
    """As many steps as have a search of each text, at least."""

    steps_s: float
    planning_s: float  # of them, to plan what is verified


class PlanningClock:
    """Plans the drafts of steps, and adds up the time that it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> StepDrafts:
        started = time.perf_counter()
        drafts = plan_drafts(*arguments)
        self.seconds += time.perf_counter() - started
        return drafts


def _time_turns(core: EngineCore, clock: PlanningClock) -> Iterator[Turn]:
    """Decode what was submitted."""
    compute_prompts(core)
    while core.has_work():
        started, clock.seconds = time.process_time(), 0.0
        for _ in range(LONGEST_INTERVAL):
            core.step()
        yield Turn(time.process_time() - started, clock.seconds)


def _sum_of_least(repeats: list[list[Turn]]) -> Turn:
    """Add up the least time of each turn, of steps and of planning."""
    least = [map(min, zip(*turns, strict=True)) for turns in zip(*repeats, strict=True)]
    return Turn(*map(sum, zip(*least, strict=True)))


def _gains(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    plain = seconds.pop(PLAIN)
    return {
        source: spread([p / s for p, s in zip(plain, own, strict=True)])
        for source, own in seconds.items()
    }


def _source_times(rng: random.Random) -> dict[str, float]:
    """Return the median time of an update and a draft, in a text that is copied with edits."""
    code = [rng.randrange(3000) for _ in range(CONTEXT)]
    found = {}
    for name, source, match in (
        ("suffix", "suffix", "BFS"),
        ("prompt", "prompt", "BFS"),
        ("trie", "trie", "BFS"),
        ("trie by count", "trie", "PROB"),
    ):
        settings = NgramBoot.model_validate(
            {"source": source, "match": match, "max_depth": DEPTH, "min_match": 1}
        )
        text = text_maker(settings, 1)()
        text.append(code)
        limits = DraftLimits(DEPTH - 1, DEPTH - 1, 4 if source == "trie" else 1)
        times = []
        for step in range(STEPS):
            count = rng.choice((1, 1, 5))
            tokens = [code[(step * 3 + place) % CONTEXT] for place in range(count)]
            started = time.perf_counter()
            text.append(tokens)
            text.draft(limits)
            times.append(time.perf_counter() - started)
        found[name] = round(statistics.median(times) * 1e6, 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
