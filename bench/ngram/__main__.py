"""`python -m ngram`: NGRAM next to plain decoding at batch 1; the last line is JSON.

The targets are the example model and one of 82 million random weights. Their output is scripted: an
edit of code that repeats the prompt with some tokens changed, and a text in which no token occurs
twice.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from engine.epsilon_pair import SIZE_82M, STRONG, write_pair
from ngram.memory import memory_after_inserts
from ngram.scripted_target import ScriptedSampler, answer, build_scripted, submit
from peers.report import processor_model
from specdecode_api.boot import NgramBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.ngram.sources import DraftLimits
from specdecode_engine.speculate.ngram.texts import text_maker

TARGET = Path(__file__).resolve().parents[2] / "examples" / "models" / "target"
PROMPT, ANSWER, NUM_STEPS, REPEATS, STEP_REPEATS = 200, 200, 7, 5, 3
EDIT_CHANCE = 0.05  # of a token of the answer
DEPTH, CONTEXT, STEPS = 12, 4000, 2000  # of the time of sources

SOURCES = ("suffix", "prompt", "trie")
PLAIN, CONTROL = "plain", "plain again"  # their difference is the error of the measurement
Engines = dict[str, tuple[EngineCore, ScriptedSampler]]


def main() -> int:
    """Measure all of it, and print the figures."""
    torch.set_num_threads(1)
    figures: dict[str, object] = {
        "processor": processor_model(),
        "million_inserts": memory_after_inserts(),
        "us_per_request_and_step": _source_times(random.Random(1)),
        "example model": _compare_on(TARGET),
    }
    with tempfile.TemporaryDirectory() as name:
        folder, _ = write_pair(Path(name), SIZE_82M, STRONG)
        figures["82 million parameters"] = _compare_on(folder)
    print(json.dumps(figures))
    return 0


def _compare_on(target: Path) -> dict[str, dict[str, float]]:
    """Return the gain of each source over plain decoding, for both texts."""
    engines = {source: _engine(target, source) for source in (PLAIN, CONTROL, *SOURCES)}
    vocab = engines[PLAIN][0].context.target.config.vocab_size
    rng = random.Random(1)
    return {
        "edit": _compare_answers(engines, _edit(rng, vocab)),
        "no repetition": _compare_steps(engines, _without_repetition(rng, vocab)),
    }


def _engine(target: Path, source: str) -> tuple[EngineCore, ScriptedSampler]:
    drafts = {"algorithm": "NGRAM", "num_steps": NUM_STEPS, "ngram": {"source": source}}
    return build_scripted(target, drafts if source in SOURCES else {})


def _edit(rng: random.Random, vocab: int) -> tuple[int, ...]:
    code = [rng.randrange(vocab) for _ in range(PROMPT)]
    edited = [rng.randrange(vocab) if rng.random() < EDIT_CHANCE else token for token in code]
    return (*code, *edited[:ANSWER])


def _without_repetition(rng: random.Random, vocab: int) -> tuple[int, ...]:
    return tuple(rng.sample(range(vocab), min(PROMPT + ANSWER, vocab)))


def _compare_answers(engines: Engines, text: tuple[int, ...]) -> dict[str, float]:
    """Return by how much each source is faster than plain decoding; all within each repeat."""
    seconds: dict[str, list[float]] = {source: [] for source in engines}
    sources = list(engines)
    for repeat in range(REPEATS + 1):  # the first one warms up
        sources.append(sources.pop(0))  # none of them always follows the same one
        for source in sources:
            core, sampler = engines[source]
            started = time.process_time()
            answer(core, sampler, text, len(text) // 2)
            if repeat:
                seconds[source].append(time.process_time() - started)
    return _gains(seconds)


def _compare_steps(engines: Engines, text: tuple[int, ...]) -> dict[str, float]:
    """Return the same for text that nothing is drafted of, where engines take turns at each step.

    A step of each then does the same, so that load of other processes hits all alike.
    """
    seconds: dict[str, list[float]] = {source: [] for source in engines}
    for _ in range(STEP_REPEATS):
        for core, sampler in engines.values():
            submit(core, sampler, text, len(text) // 2)
        while any(core.has_work() for core, _ in engines.values()):
            for source in random.sample(list(engines), len(engines)):
                started = time.process_time()
                engines[source][0].step()
                seconds[source].append(time.process_time() - started)
    return _gains(seconds)


def _gains(seconds: dict[str, list[float]]) -> dict[str, float]:
    plain = seconds.pop(PLAIN)
    return {
        source: round(statistics.median(p / s for p, s in zip(plain, own, strict=True)), 3)
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
