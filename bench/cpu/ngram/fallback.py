"""`python -m bench.cpu.ngram.fallback [--quick]`: NGRAM next to an EAGLE-3 head; last line JSON.

All is at batch 1.

The target has random weights and scripted output, and the head drafts tokens of a dialled
acceptance; both compute all that trained ones would. The texts are an edit that repeats its prompt,
one in which no token occurs twice, one of few tokens in random order, in which much matches and
little of it continues in the same way, and one that is the first of these and then the third. All
are roles of one engine that take turns at every text: engines that do the same steps differ by up
to a fifth, by where their weights lie.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from bench.cpu.dialled.dial import MOST_STEPS, Dial
from bench.cpu.dialled.heads import write_heads
from bench.cpu.ngram.scripted_target import ScriptedSampler, answer, build_scripted
from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from checks.harness.machine import processor_model
from checks.harness.role import NothingIsKept, Role
from specdecode_engine.adaptive.draft_health import DraftHealth
from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.target.config import NO_HIDDEN_STATES
from specdecode_engine.schedule.drafting import Drafting

PROMPT, ANSWER, NUM_STEPS = 200, 200, 5
TEXTS, TURNS = 6, 2  # of each kind, and of every role at each
EDIT_CHANCE = 0.05  # of a token of the answer
FEW_TOKENS = 40
ACCEPTANCE = tuple(max(0.8 - 0.1 * step, 0.1) for step in range(MOST_STEPS))
QUICK = Size(4, 128, heads=4)

PLAIN, HEAD, NGRAM, FALLBACK = "plain", "EAGLE-3", "NGRAM", "EAGLE-3 with fallback"
CONTROL = "NGRAM again"  # its difference is the error of the measurement
Text = tuple[int, ...]


def main() -> int:
    """Measure every text, and print the figures."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="bench.cpu.ngram.fallback", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="A small model and few texts.")
    options = parser.parse_args()
    size, count, turns = (QUICK, 1, 1) if options.quick else (SIZE_82M, TEXTS, TURNS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = make_texts(random.Random(1), size.vocab, count + 1)
    with tempfile.TemporaryDirectory() as name:
        target, _ = write_pair(Path(name), size, STRONG)
        head = write_heads(Path(name), size)["EAGLE3"]
        eagle3 = {"algorithm": "EAGLE3", "draft_path": str(head), "num_steps": NUM_STEPS}
        core, sampler = build_scripted(target, {**eagle3, "fallback": "NGRAM"})
    rows = torch.tensor([text for several in texts.values() for text in several])
    Dial(rows, PROMPT, ACCEPTANCE, size.vocab).install(core)
    roles = make_roles(core)
    found = {kind: compare(core, sampler, roles, own, turns) for kind, own in texts.items()}
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


def make_roles(core: EngineCore) -> dict[str, Role]:
    """Let an engine with a head and the fallback also be one with less."""
    whole, drafting = core.context, core.scheduler.drafting
    alone = replace(whole, drafter=None, sources=None, aux_spec=NO_HIDDEN_STATES)
    ngram = Role(alone, NothingIsKept(drafting.policy))
    head = Drafting(drafting.policy, DraftHealth(), drafting.rest)
    return {
        PLAIN: Role(replace(alone, proposer=None), NothingIsKept(StaticPolicy(0))),
        HEAD: Role(replace(whole, proposer=None, sources=None), head),
        NGRAM: ngram,
        CONTROL: ngram,
        FALLBACK: Role(whole, drafting),
    }


def compare(
    core: EngineCore,
    sampler: ScriptedSampler,
    roles: Mapping[str, Role],
    texts: list[Text],
    turns: int,
) -> dict[str, object]:
    """Compare the processor time of answers, prompts included; the first text warms up.

    Returns:
        Ratios of times within a turn, in quartiles, and the decode steps of an answer.
    """
    seconds: dict[str, list[float]] = {kind: [] for kind in roles}
    steps = dict.fromkeys(roles, 0)
    order = list(roles)
    for text in tqdm([texts[0], *texts[1:] * turns]):
        random.shuffle(order)
        for kind in order:
            roles[kind].take(core)
            before = core.counters.decode.request_steps
            started_s = time.process_time()
            answer(core, sampler, text, PROMPT)
            seconds[kind].append(time.process_time() - started_s)
            steps[kind] += core.counters.decode.request_steps - before if text != texts[0] else 0
    seconds = {kind: own[1:] for kind, own in seconds.items()}
    best = [min(pair) for pair in zip(seconds[HEAD], seconds[NGRAM], strict=True)]
    return {
        "to_plain": {kind: _ratio(seconds[PLAIN], seconds[kind]) for kind in roles},
        "fallback_to_best": _ratio(best, seconds[FALLBACK]),
        "fallback_to_ngram": _ratio(seconds[NGRAM], seconds[FALLBACK]),
        "ngram_to_itself": _ratio(seconds[NGRAM], seconds[CONTROL]),
        "steps_per_answer": {
            kind: round(count / len(seconds[kind]), 1) for kind, count in steps.items()
        },
    }


def _ratio(other: list[float], own: list[float]) -> list[float]:
    """Return the quartiles of the gains over another role, or the only one three times."""
    found = [a / b for a, b in zip(other, own, strict=True)]
    quartiles = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    return [round(one, 3) for one in quartiles]


if __name__ == "__main__":
    sys.exit(main())
