"""Batches of which half of the requests accept little, and what verifying none of theirs gains.

The vocabulary has two halves, and text stays in the half that it began in. The draft has the
embedding of the target for one half, and noise added to it for the other, so that it predicts one
half of the requests well and the other badly. The clairvoyant knows which is which: it verifies the
whole draft of the first and one row of the others. What a policy that has to learn this can gain is
less.
"""

import random
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.cpu.engine.adaptive import ADAPTIVE, Extent, build_adaptable
from bench.cpu.engine.interleaved import Learner, interleave
from bench.cpu.peers.byte_vocabulary import EOS_ID
from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore

BATCH_SIZES = (8, 32)
CLAIRVOYANT_STEPS = (2, 3, 5)
PROMPT_TOKENS = 16
NOISE = 1.0  # standard deviation; that of the embedding is 1
SIDE = 0.35  # of a head's row, along the direction that distinguishes the halves
FULL = Extent(
    SIZE_82M, answer_tokens=24, repeats=5, learning_steps=200, fixed_steps=(0, 1, 2, 3, 5)
)


def measure_mixed(
    extent: Extent, batch_sizes: tuple[int, ...] = BATCH_SIZES
) -> dict[str, dict[str, float]]:
    """Return per batch size: rates, and those of policy and clairvoyant over the best fixed."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        pair = write_mixed_pair(Path(folder), extent.size, STRONG)
        for size in batch_sizes:
            results[f"mixed b{size}"] = _measure_cell(pair, size, extent)
    return results


def write_mixed_pair(folder: Path, size: Size, epsilon: float) -> tuple[Path, Path]:
    """Write a pair that agrees less in the upper half of the vocabulary; see `write_pair`."""
    target, draft = write_pair(folder, size, epsilon)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(size.hidden, generator=generator)
    direction /= direction.norm()
    sides = torch.ones(size.vocab, 1)
    sides[size.vocab // 2 :] = -1.0
    noise = NOISE * torch.randn(size.vocab, size.hidden, generator=generator) * (sides < 0)
    for model in (target, draft):
        file = model / "model.safetensors"
        tensors = load_file(file)
        _split(tensors, sides * direction)
        if model == draft:
            tensors["model.embed_tokens.weight"] += noise
        save_file(tensors, file)
    return target, draft


def _split(tensors: dict[str, Tensor], along: Tensor) -> None:
    """Let each token's successor be of its own half."""
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    embedding += along * embedding.shape[1] ** 0.5
    head += along * SIDE
    head[EOS_ID] = 0.0


def _measure_cell(pair: tuple[Path, Path], batch_size: int, extent: Extent) -> dict[str, float]:
    configs: tuple[int | str, ...] = (*extent.fixed_steps, ADAPTIVE)
    cores = {config: build_adaptable(*pair, config, batch_size) for config in configs}
    for steps in CLAIRVOYANT_STEPS:
        core = cores[f"clairvoyant {steps}"] = build_adaptable(*pair, steps, batch_size)
        core.choose_rows = predictable_rows
    clairvoyants = [f"clairvoyant {steps}" for steps in CLAIRVOYANT_STEPS]

    def run(core: EngineCore, seed: int) -> float:
        return decode_mixed(core, batch_size, extent, seed)

    learner = Learner(ADAPTIVE, extent.learning_steps)
    rates = interleave(cores, run, extent.repeats, learner, f"mixed b{batch_size}")
    best = rates.best(extent.fixed_steps)
    return {
        "best_fixed_steps": best,
        "to_best_fixed": rates.ratio(ADAPTIVE, best),
        "clairvoyant_to_best_fixed": max(rates.ratio(one, best) for one in clairvoyants),
        **rates.medians(),
    }


def predictable_rows(shape: DraftShape, sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
    """Verify the whole draft of a predictable request, and one row of another."""
    return tuple(shape.num_tokens if is_predictable(one.request) else 1 for one in sequences)


def is_predictable(request: Request) -> bool:
    """Whether the draft predicts this request of `decode_mixed` well."""
    return int(request.request_id) % 2 == 0


def decode_mixed(core: EngineCore, batch_size: int, extent: Extent, seed: int) -> float:
    """Decode as many requests at once throughout; tokens per second of processor time."""
    rng, half = random.Random(seed), extent.size.vocab // 2
    room = core.context_length - PROMPT_TOKENS
    for number in range(batch_size):
        first = half * (number % 2)
        prompt = tuple(first + rng.randrange(EOS_ID + 1, half) for _ in range(PROMPT_TOKENS))
        core.submit(Request(str(number), prompt, SamplingParams(0, room, 0.0, ignore_eos=True)))
    while core.scheduler.waiting or any(one.is_prefilling for one in core.scheduler.running):
        core.step()
    tokens, started_s = 0, time.process_time()
    while tokens < extent.answer_tokens * batch_size:
        tokens += sum(len(output.token_ids) for output in core.step())
    rate = tokens / (time.process_time() - started_s)
    for number in range(batch_size):
        core.abort(str(number))
    while core.has_work():
        core.step()
    return rate
