"""The memory that each source takes for random text."""

import os
import random

from checks.soak.measures import resident_bytes
from specdecode_api.boot import NgramBoot
from specdecode_engine.speculate.ngram.texts import ngram_bytes, text_maker

INSERTS, VOCAB = 10**6, 50_000
REQUESTS = 10  # one after the other


def memory_after_inserts() -> dict[str, dict[str, float]]:
    """Return by how much the process grows, in MB, and the bound that the memory plan has.

    Tokens are appended one at a time; the text of a request is kept for those after it.
    """
    found = {}
    for source in ("suffix", "prompt", "trie"):
        scope = "request" if source == "prompt" else "model"
        settings = NgramBoot.model_validate({"source": source, "scope": scope})
        sizes = _sizes(settings, random.Random(2))
        found[source] = {
            "grown_mb": _mb(sizes[-1] - sizes[0]),
            "grown_in_second_half_mb": _mb(sizes[-1] - sizes[REQUESTS // 2]),
            "bound_mb": _mb(ngram_bytes(settings, 1, INSERTS // REQUESTS)),
        }
    return found


def _sizes(settings: NgramBoot, rng: random.Random) -> list[int]:
    """Return the resident bytes of the process before the first request and after each."""
    sizes = [resident_bytes(os.getpid())]
    make = text_maker(settings, 1)
    for _ in range(REQUESTS):
        text = make()
        for _ in range(INSERTS // REQUESTS):
            text.append([rng.randrange(VOCAB)])
        text.close(prompt_tokens=0)
        sizes.append(resident_bytes(os.getpid()))
    return sizes


def _mb(size: int) -> float:
    return round(size / 1e6, 1)
