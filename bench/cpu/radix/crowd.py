"""Thousands of short requests with shared beginnings on the example models, over few pages."""

import random
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
DRAFTS = {"NONE": None, "STANDALONE": "draft", "EAGLE3": "eagle3"}
RUNNING = 8


@dataclass(frozen=True, slots=True)
class Served:
    """Texts by request, whether each was cut short, and what the engine counted."""

    texts: list[list[int]]
    aborted: set[int]
    core: EngineCore

    def differing(self, cold: "Served") -> int:
        """Count requests whose text is not that of a cold engine, or its beginning if aborted."""
        return sum(
            text != other[: len(text)] or (len(text) < len(other) and number not in self.aborted)
            for number, (text, other) in enumerate(zip(self.texts, cold.texts, strict=True))
        )


def draw(count: int, seed: int) -> list[Request]:
    """Draw requests: a few long beginnings, many ends, some of them continued conversations."""
    rng = random.Random(seed)
    stems = [rng.choices(range(300, 1000), k=rng.randrange(8, 60)) for _ in range(12)]
    requests: list[Request] = []
    for number in range(count):
        if requests and rng.random() < 0.2:
            prompt = list(rng.choice(requests[-50:]).prompt_ids)
        else:
            stem = rng.choice(stems)
            prompt = stem[: rng.randrange(1, len(stem) + 1)]
        prompt += rng.choices(range(300, 1000), k=rng.randrange(4))
        sampling = SamplingParams(
            seed=number % 5,
            max_tokens=rng.choice((1, 2, 5, 9)),
            temperature=rng.choice((0.0, 0.0, 0.8)),
            logprobs=rng.choice((None, 1)),
        )
        requests.append(Request(str(number), tuple(prompt[-90:]), sampling))
    return requests


def build(algorithm: str, *, is_on: bool, pages: int, page_size: int) -> EngineCore:
    """Build an engine in float64, so that equal texts are a statement about the cache."""
    draft = DRAFTS[algorithm]
    speculation = {"draft_path": str(MODELS / draft), "num_steps": 3} if draft else {}
    document = {
        "model": {"path": str(MODELS / "target"), "dtype": "float64"},
        "speculation": {"algorithm": algorithm, **speculation},
        "memory": {"page_size": page_size, "prefix_cache": is_on},
        "scheduling": {"max_running_requests": RUNNING, "chunked_prefill_tokens": 64},
        "device": "cpu",
        "threads": 1,
    }
    boot = EngineBoot.model_validate(document)
    return build_poisoned(boot, pages * page_size)


def serve(core: EngineCore, requests: list[Request], abort_share: float, title: str) -> Served:
    """Serve all requests in order, looking for leaks after every step."""
    rng = random.Random(0)
    texts: list[list[int]] = [[] for _ in requests]
    alive: set[str] = set()
    aborted: set[int] = set()
    bar = tqdm(total=len(requests), desc=title)
    position = 0
    while position < len(requests) or core.has_work():
        for request in requests[position : position + 2 * RUNNING - len(alive)]:
            core.submit(request)
            alive.add(request.request_id)
            position += 1
        if alive and rng.random() < abort_share:
            victim = rng.choice(sorted(alive))
            core.abort(victim)
            alive.remove(victim)
            aborted.add(int(victim))
            bar.update()
        for output in core.step():
            texts[int(output.request_id)] += output.token_ids
            if output.finish_reason is not None:
                alive.discard(output.request_id)
                bar.update()
        core.scheduler.check()
    bar.close()
    return Served(texts, aborted, core)
