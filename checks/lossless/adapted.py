"""LoRA adapters in cases: which requests have one, faults that must be found, what was seen.

Drawn apart from cases, which otherwise stay those of their seeds.
"""

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from checks.harness.adapter_files import ATTENTION, EVERYWHERE, MLP, random_factors, write_adapter
from checks.lossless.cases import Case, CaseRequest, Material
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.implementations import read_config
from specdecode_engine.model.target.config import LlamaConfig

SHARE = 0.2
"""Of the cases whose model takes adapters; of all with `--adapters`."""
SAME_PROMPT = 0.5
"""Of the requests of such a case: theirs is the prompt of the first one."""
LATE = (0, 8, 20, 40)
"""Steps at which such requests arrive: after the first one has left its pages."""
MOST_PAGE = 8
"""Tokens, so that short prompts have whole pages."""
LEAST_PAIRS, LEAST = 3, 50
"""Cases of each family with each draft, and what is seen of everything else, in a whole run."""
SCALE = 3
SIZE = 0.08


class AdapterSpec(NamedTuple):
    """The maps that an adapter changes, and its rank."""

    maps: Sequence[str]
    rank: int


ADAPTERS: Mapping[str, AdapterSpec] = {
    "everywhere": AdapterSpec(EVERYWHERE, 3),
    "attention": AdapterSpec(ATTENTION, 8),
    "mlp": AdapterSpec((*MLP, "o_proj"), 2),
    "ends": AdapterSpec(("embed_tokens", "lm_head", "v_proj"), 20),
}
FAULTS = ("neighbouring-adapter", "prefix-of-another-adapter", "scale-forgotten")
"""What an engine may do wrongly with adapters."""


def write_adapters(target: Path, folder: Path) -> dict[str, str]:
    """Write adapters of a target, if it takes any; return their folders by name."""
    if not isinstance(read_config(target), LlamaConfig):
        return {}
    found = {}
    for seed, (name, of) in enumerate(ADAPTERS.items()):
        tensors = random_factors(target, of.maps, rank=of.rank, seed=seed, size=SIZE)
        keys = {"r": of.rank, "lora_alpha": SCALE * of.rank}
        found[name] = str(write_adapter(folder / name, tensors, keys))
        write_adapter(_unscaled(folder / name), tensors, {**keys, "lora_alpha": of.rank})
    return found


def _unscaled(folder: Path) -> Path:
    """The same factors with a scale of 1."""
    return folder.with_name(f"{folder.name}-unscaled")


def with_fault(adapters: Mapping[str, str], fault: str | None) -> Mapping[str, str]:
    """Return the adapters that an engine with a fault loads."""
    if fault != "scale-forgotten":
        return adapters
    return {name: str(_unscaled(Path(path))) for name, path in adapters.items()}


def plant(core: EngineCore, fault: str | None) -> None:
    """Let an engine give rows the adapter of the row before, or share prefixes of all adapters."""
    pool, cache = core.context.adapters, core.scheduler.cache
    if fault == "neighbouring-adapter" and pool is not None:
        slots_of = pool.slots_of
        vars(pool)["slots_of"] = lambda req_indices: np.roll(slots_of(req_indices), 1)
    if fault == "prefix-of-another-adapter":
        match = cache.match
        vars(cache)["match"] = lambda tokens, skippable, key: match(
            tokens, skippable, (key[0], "", *key[2:])
        )


def material_of(number: int, material: Material, adapted: Sequence[str]) -> Material:
    """Let the cases of a run with `--adapters` have each family and draft in turn."""
    family = adapted[number % len(adapted)]
    algorithms = material.algorithms
    algorithm = algorithms[number // len(adapted) % len(algorithms)]
    return replace(material, families=(family,), algorithms=(algorithm,))


def with_adapters(case: Case, seed: int, names: Collection[str], share: float = SHARE) -> Case:
    """Give requests of some cases adapters; CUDA graphs are off then."""
    rng = random.Random(f"{seed}/{case.number}/adapters")
    if not names or rng.random() >= share:
        return case
    first, choices = case.requests[0], ("", *names)

    def change(request: CaseRequest) -> CaseRequest:
        changed = replace(request, adapter=rng.choice(choices))
        if rng.random() >= SAME_PROMPT:
            return changed
        arrives = rng.choice(LATE) if request.aborted_at_step is None else request.arrives_at_step
        return replace(
            changed,
            prompt_ids=first.prompt_ids,
            cache_salt=first.cache_salt,
            arrives_at_step=arrives,
        )

    requests = tuple(map(change, case.requests))
    longer = _longest(requests) - _longest(case.requests)
    pool_tokens = case.pool_tokens + max(longer, 0)
    return replace(
        case,
        requests=requests,
        graphs="off",
        pool_tokens=pool_tokens,
        page_size=min(case.page_size, MOST_PAGE),
        adapted=True,
    )


def _longest(requests: Sequence[CaseRequest]) -> int:
    return max(len(one.prompt_ids) + one.sampling.max_tokens for one in requests)


class AdapterTally:
    """What was seen of cases with adapters."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()

    def watch(self, core: EngineCore) -> None:
        """Count the adapters of the requests that run in a step."""
        adapters = {one.request.adapter for one in core.scheduler.running} - {""}
        if adapters:
            self.batches[len(adapters)] += 1

    def count(self, case: Case, core: EngineCore, cached_tokens: Sequence[int]) -> None:
        """Add one case.

        Args:
            cached_tokens: of the requests with an adapter.
        """
        totals = core.counters.decode
        self.pairs[f"{case.family} x {case.algorithm}"] += 1
        self.seen["requests with an adapter"] += sum(bool(one.adapter) for one in case.requests)
        self.seen["preemptions"] += core.scheduler.preempted_total
        self.seen["prefix hits"] += sum(tokens > 0 for tokens in cached_tokens)
        self.seen["steps of trees"] += totals.request_steps if case.topk > 1 else 0
        self.seen["rejected nodes"] += totals.verified_tokens - totals.accepted_tokens

    def report(self) -> dict[str, object]:
        """Return all counts, for the summary of a run."""
        return {
            "cases": sum(self.pairs.values()),
            "by_family_and_draft": dict(sorted(self.pairs.items())),
            "steps_by_adapters_in_the_batch": dict(sorted(self.batches.items())),
            **dict(sorted(self.seen.items())),
        }

    def missing(self, families: Sequence[str], algorithms: Sequence[str]) -> list[str]:
        """Name what a whole run has seen too little of."""
        pairs = [f"{family} x {algorithm}" for family in families for algorithm in algorithms]
        found = [pair for pair in pairs if self.pairs[pair] < LEAST_PAIRS]
        mixed = sum(steps for count, steps in self.batches.items() if count > 1)
        counts = {**self.seen, "steps of several adapters": mixed}
        return found + [name for name, count in counts.items() if count < LEAST]
