"""The trained EAGLE-3 head and DFlash draft of the example model, on its held-out prompts."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm
from transformers import AutoTokenizer

from bench.cpu.dialled.engines import DFLASH, EAGLE3, NONE, Tokens, answer, build, ratios
from checks.lossless.prompts import load_prompts
from specdecode_engine.engine import EngineCore

MODELS = Path(__file__).parents[3] / "examples" / "models"
HEADS = {NONE: None, EAGLE3: MODELS / "eagle3", DFLASH: MODELS / "dflash"}
BATCHES, PROMPTS, ANSWER = (1, 2, 4, 8), 24, 96


def compare_trained(repeats: int) -> dict[str, object]:
    """Return tokens per second of processor time with each head, by batch size."""
    target = MODELS / "target"
    cores = {algorithm: build(target, algorithm, head) for algorithm, head in HEADS.items()}
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = load_prompts(MODELS, tokenizer)[:PROMPTS]
    return {f"batch {size}": _compare(cores, prompts, size, repeats) for size in BATCHES}


def _compare(
    cores: Mapping[str, EngineCore], prompts: Sequence[Tokens], batch_size: int, repeats: int
) -> dict[str, object]:
    seconds: dict[str, list[float]] = {algorithm: [] for algorithm in cores}
    lengths: dict[str, float] = {}
    for repeat in tqdm(range(repeats + 1), desc=f"trained heads, batch {batch_size}"):
        texts = []
        for algorithm, core in cores.items():
            before, started_s = core.counters.decode.request_steps, time.process_time()
            texts.append(_answer_all(core, prompts, batch_size))
            if repeat:  # the first one teaches the policy
                seconds[algorithm].append(time.process_time() - started_s)
            steps = core.counters.decode.request_steps - before
            lengths[algorithm] = sum(len(text) - 1 for text in texts[-1]) / steps
        assert all(one == texts[0] for one in texts), "a draft changed the text"
    return {
        "dflash_to_eagle3": ratios(seconds[EAGLE3], seconds[DFLASH]),
        "dflash_to_plain": ratios(seconds[NONE], seconds[DFLASH]),
        "eagle3_to_plain": ratios(seconds[NONE], seconds[EAGLE3]),
        "cpu_seconds": {name: round(statistics.median(one), 2) for name, one in seconds.items()},
        "tokens_per_step": {name: round(one, 2) for name, one in lengths.items()},
    }


def _answer_all(core: EngineCore, prompts: Sequence[Tokens], batch_size: int) -> list[Tokens]:
    groups = (prompts[at : at + batch_size] for at in range(0, len(prompts), batch_size))
    return [text for group in groups for text in answer(core, group, ANSWER, ignore_eos=False)]
