"""The requests that everybody answers: drawn from a seed, the same for all within a repeat."""

import random
from dataclasses import dataclass

FIRST_TOKEN = 3  # those before are special
MIXED_REQUESTS = 64
BATCH = 8


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts, and how many new tokens each is to get."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]

    @property
    def token_count(self) -> int:
        """New tokens in all."""
        return sum(self.tokens)


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts and answers are."""

    prompt: int
    single_answer: int
    batch_answer: int
    mixed_prompt: tuple[int, int]
    mixed_answer: tuple[int, int]


QUICK_LENGTHS = Lengths(32, 32, 12, mixed_prompt=(8, 16), mixed_answer=(2, 8))
FULL_LENGTHS = Lengths(64, 96, 48, mixed_prompt=(8, 56), mixed_answer=(8, 40))


def draw_loads(lengths: Lengths, vocab: int, seed: int) -> dict[str, Load]:
    """Draw one request, eight of one length, 64 of all lengths, and 64 of their mean length."""
    rng = random.Random(seed)

    def prompt(tokens: int) -> tuple[int, ...]:
        return tuple(rng.randrange(FIRST_TOKEN, vocab) for _ in range(tokens))

    mixed_prompts = _spread(*lengths.mixed_prompt, rng)
    mixed_answers = _spread(*lengths.mixed_answer, rng)
    even = sum(lengths.mixed_prompt) // 2, sum(lengths.mixed_answer) // 2
    return {
        "single": Load((prompt(lengths.prompt),), (lengths.single_answer,)),
        "batch": Load(
            tuple(prompt(lengths.prompt) for _ in range(BATCH)), (lengths.batch_answer,) * BATCH
        ),
        "mixed": Load(tuple(prompt(n) for n in mixed_prompts), tuple(mixed_answers)),
        "even": Load(
            tuple(prompt(even[0]) for _ in range(MIXED_REQUESTS)), (even[1],) * MIXED_REQUESTS
        ),
    }


def _spread(least: int, most: int, rng: random.Random) -> list[int]:
    """Lengths evenly between both ends, so that every seed has the same sum; in random order."""
    span = most - least
    lengths = [least + round(span * n / (MIXED_REQUESTS - 1)) for n in range(MIXED_REQUESTS)]
    rng.shuffle(lengths)
    return lengths
