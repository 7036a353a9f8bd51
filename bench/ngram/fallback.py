"""`python -m ngram.fallback [--quick]`: NGRAM next to an EAGLE-3 head, at batch 1; last line JSON.

The target has random weights and scripted output, and the head drafts tokens of a dialled
acceptance; both compute all that trained ones would. The texts are an edit that repeats its prompt,
one in which no token occurs twice, one of few tokens in random order, in which much matches and
little of it continues in the same way, and one that is the first of these and then the third.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from dialled.dial import MOST_STEPS, Dial
from dialled.heads import write_heads
from engine.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from ngram.scripted_target import ScriptedSampler, answer, build_scripted
from peers.report import processor_model
from specdecode_engine.engine import EngineCore

PROMPT, ANSWER, NUM_STEPS, REPEATS = 200, 200, 5, 3
EDIT_CHANCE = 0.05  # of a token of the answer
FEW_TOKENS = 40
ACCEPTANCE = tuple(max(0.8 - 0.1 * step, 0.1) for step in range(MOST_STEPS))
QUICK = Size(4, 128, heads=4)

PLAIN, HEAD, NGRAM, FALLBACK = "plain", "EAGLE-3", "NGRAM", "EAGLE-3 with fallback"
Text = tuple[int, ...]


def main() -> int:
    """Measure every text, and print the figures."""
    parser = argparse.ArgumentParser(prog="ngram.fallback", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="A small model and few repeats.")
    options = parser.parse_args()
    size, repeats = (QUICK, 1) if options.quick else (SIZE_82M, REPEATS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = make_texts(random.Random(1), size.vocab, repeats + 1)
    with tempfile.TemporaryDirectory() as name:
        target, _ = write_pair(Path(name), size, STRONG)
        engines = _engines(target, write_heads(Path(name), size)["EAGLE3"])
    rows = torch.tensor([text for several in texts.values() for text in several])
    dial = Dial(rows, PROMPT, ACCEPTANCE, size.vocab)
    for kind in (HEAD, FALLBACK):
        dial.install(engines[kind][0])
    found = {kind: _compare(engines, several) for kind, several in texts.items()}
    print(json.dumps({"processor": processor_model(), "texts": found}, ensure_ascii=False))
    return 0


def make_texts(rng: random.Random, vocab: int, count: int) -> dict[str, list[Text]]:
    """Draw texts of each kind, of prompt and answer; each has a first token of its own."""
    firsts = iter(range(8, vocab))

    def edit(length: int) -> list[int]:
        code = [rng.randrange(vocab // 2, vocab) for _ in range(length)]
        edited = [rng.randrange(vocab) if rng.random() < EDIT_CHANCE else one for one in code]
        return [*code, *edited]

    def few(length: int) -> list[int]:
        return [rng.randrange(vocab // 2, vocab // 2 + FEW_TOKENS) for _ in range(length)]

    kinds: dict[str, Callable[[], list[int]]] = {
        "edit": lambda: edit(PROMPT)[1:],
        "no repetition": lambda: rng.sample(range(vocab // 2, vocab), PROMPT + ANSWER - 1),
        "few tokens": lambda: few(PROMPT + ANSWER - 1),
        "edit, then few tokens": lambda: [
            *few(PROMPT - ANSWER // 2 - 1), *edit(ANSWER // 2), *few(ANSWER // 2),
        ],
    }  # fmt: skip
    return {kind: [(next(firsts), *draw()) for _ in range(count)] for kind, draw in kinds.items()}


def _engines(target: Path, head: Path) -> dict[str, tuple[EngineCore, ScriptedSampler]]:
    eagle3 = {"algorithm": "EAGLE3", "draft_path": str(head), "num_steps": NUM_STEPS}
    kinds: dict[str, dict[str, object]] = {
        PLAIN: {},
        HEAD: eagle3,
        NGRAM: {"algorithm": "NGRAM", "num_steps": NUM_STEPS},
        FALLBACK: {**eagle3, "fallback": "NGRAM"},
    }
    return {kind: build_scripted(target, speculation) for kind, speculation in kinds.items()}


def _compare(
    engines: dict[str, tuple[EngineCore, ScriptedSampler]], texts: list[Text]
) -> dict[str, object]:
    """Return processor time and accept length of each engine; all take turns at every text."""
    seconds: dict[str, list[float]] = {kind: [] for kind in engines}
    tokens: dict[str, int] = dict.fromkeys(engines, 0)
    sources = dict.fromkeys(("model", "ngram"), 0)
    order = list(engines)
    for number, text in enumerate(tqdm(texts)):
        order.append(order.pop(0))  # none of them always follows the same one
        for kind in order:
            core, sampler = engines[kind]
            steps = core.counters.decode.request_steps
            before = {source: core.counters.sources[source].accepted for source in sources}
            started_s = time.process_time()
            answer(core, sampler, text, PROMPT)
            if not number:  # the first one warms up
                continue
            seconds[kind].append(time.process_time() - started_s)
            tokens[kind] += core.counters.decode.request_steps - steps
            if kind == FALLBACK:
                for source in sources:
                    sources[source] += core.counters.sources[source].accepted - before[source]
    best = [min(pair) for pair in zip(seconds[HEAD], seconds[NGRAM], strict=True)]
    return {
        "to_plain": {kind: _ratio(seconds[PLAIN], own) for kind, own in seconds.items()},
        "fallback_to_best": _ratio(best, seconds[FALLBACK]),
        "steps_per_answer": {
            kind: round(count / len(seconds[kind]), 1) for kind, count in tokens.items()
        },
        "accepted_by_source": sources,
    }


def _ratio(other: list[float], own: list[float]) -> list[float]:
    """Return the least, the median and the greatest of the gains over another engine."""
    found = [a / b for a, b in zip(other, own, strict=True)]
    return [round(one, 3) for one in (min(found), statistics.median(found), max(found))]


if __name__ == "__main__":
    sys.exit(main())
