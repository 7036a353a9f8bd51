"""Plain pages: text that nobody asked for, with an opening long enough to be a prompt."""

from collections.abc import Callable
from random import Random

from recipe import facts, stories, sums, terms

Page = tuple[str, str]  # opening, rest

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "power": "**"}


def two_sentences(text: str) -> str:
    """Give the first two sentences of a text."""
    return text[: text.index(".", text.index(".") + 1) + 1]


def story(rng: Random) -> Page:
    """A story without a question."""
    text = stories.tell(rng).text
    opening = two_sentences(text)
    return opening, text[len(opening) :]


def counting(rng: Random) -> Page:
    """A question of counting and its answer, without the marks of a chat."""
    question, answer = sums.counting(rng)
    return f"{question}\n", answer


def log(rng: Random) -> Page:
    """A log of replicas that start one by one."""
    app, team = rng.choice(terms.APPS), rng.choice(terms.TEAMS)
    replicas = rng.randint(2, 6)
    lines = [f"{app}-{i} started in {team}, {i} of {replicas}" for i in range(1, replicas + 1)]
    opening = f"log of {app} in {team}: {replicas} replicas\n"
    return opening, "\n".join([*lines, f"{app} is ready in {team}"])


def code(rng: Random) -> Page:
    """Two functions and their calls."""
    word, other = rng.sample(tuple(SIGNS), 2)
    a, b = rng.sample("abcnmxyz", 2)
    return f"def {word}({a}, {b}):\n", (
        f"    return {a} {SIGNS[word]} {b}\n\n\ndef {other}_too({a}, {b}):\n"
        f"    return {a} {SIGNS[other]} {b}\n\n\nprint({word}(4, 2))\nprint({other}_too(4, 2))\n"
    )


def countries(rng: Random) -> Page:
    """Two countries side by side."""
    one, two = rng.sample(facts.COUNTRIES, 2)
    rest = " ".join(
        f"{it.name} is in {it.continent}. Its capital is {it.capital}, and many people there "
        f"speak {it.language}."
        for it in (one, two)
    )
    return f"{one.name} and {two.name} are two countries.", f" {rest}"


PAGES: tuple[Callable[[Random], Page], ...] = (story, counting, log, code, countries)
"""Every sort of page, all equally frequent."""
