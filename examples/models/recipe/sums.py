"""Questions of order: numbers, tables, lists, days, said in full."""

from collections.abc import Callable
from random import Random

from recipe import facts, terms
from recipe.facts import Turn


def _joined(words: tuple[str, ...] | list[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}"


def counting(rng: Random) -> Turn:
    """Count up or down, in words or in digits."""
    first = rng.randint(1, 30)
    last = first + rng.randint(4, 19)
    if rng.random() < 0.25:
        first, last = 1, rng.choice((5, 10, 15, 20))
    numbers = list(range(first, last + 1))
    write: Callable[[int], str] = facts.spell if rng.random() < 0.5 else str
    if rng.random() < 0.3:
        numbers.reverse()
        return (
            f"Count backwards from {write(last)} to {write(first)}.",
            f"Counting backwards: {', '.join(map(write, numbers))}. "
            f"I started at {write(last)} and stopped at {write(first)}.",
        )
    return (
        f"Count from {write(first)} to {write(last)}.",
        f"Here you are: {', '.join(map(write, numbers))}. "
        f"I started at {write(first)} and stopped at {write(last)}.",
    )


def table(rng: Random) -> Turn:
    """A multiplication or addition table."""
    number, rows = rng.randint(2, 12), rng.randint(5, 10)
    if rng.random() < 0.5:
        lines = [f"{i} x {number} = {i * number}" for i in range(1, rows + 1)]
        question = f"Write the table of {number} up to {rows}."
    else:
        lines = [f"{i} + {number} = {i + number}" for i in range(1, rows + 1)]
        question = f"Add {number} to every number from 1 to {rows}."
    return question, "\n".join(lines)


def total(rng: Random) -> Turn:
    """One addition or subtraction."""
    a, b = rng.randint(1, 30), rng.randint(1, 30)
    if rng.random() < 0.5:
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}. The sum of {a} and {b} is {a + b}."
    a, b = max(a, b), min(a, b)
    return (
        f"What is {a} - {b}?",
        f"{a} - {b} = {a - b}. The difference of {a} and {b} is {a - b}.",
    )


def word_problem(rng: Random) -> Turn:
    """A sum told as a small event."""
    name, thing = rng.choice(facts.NAMES), rng.choice(facts.THINGS)
    a, b = rng.randint(3, 20), rng.randint(1, 9)
    if rng.random() < 0.5:
        return (
            f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?",
            f"{name} starts with {a} {thing}. Then {name} gets {b} more {thing}. "
            f"{a} + {b} = {a + b}. So {name} has {a + b} {thing} now.",
        )
    a = max(a, b + 1)
    return (
        f"{name} has {a} {thing} and gives away {b}. How many {thing} does {name} have now?",
        f"{name} starts with {a} {thing}. Then {name} gives away {b} {thing}. "
        f"{a} - {b} = {a - b}. So {name} has {a - b} {thing} now.",
    )


def listing(rng: Random) -> Turn:
    """A list of things of one sort, in order of the alphabet."""
    sort = rng.choice(list(facts.LISTS))
    number = rng.randint(3, 6)
    items = facts.LISTS[sort]
    if rng.random() < 0.5:
        return (
            f"Name {facts.spell(number)} {sort}.",
            f"Here are {facts.spell(number)} {sort}: {_joined(items[:number])}.",
        )
    chosen = rng.sample(items, number)
    return (
        f"Sort these {sort}: {', '.join(chosen)}.",
        f"In order of the alphabet: {', '.join(sorted(chosen))}.",
    )


def calendar(rng: Random) -> Turn:
    """Days and months."""
    names, word = rng.choice(((facts.DAYS, "day"), (facts.MONTHS, "month")))
    if rng.random() < 0.25:
        whole = "week" if word == "day" else "year"
        return (
            f"Name the {word}s of the {whole}.",
            f"The {word}s of the {whole} are {_joined(names)}.",
        )
    at = rng.randrange(len(names))
    before, after = names[at - 1], names[(at + 1) % len(names)]
    if rng.random() < 0.5:
        return f"Which {word} comes after {names[at]}?", f"{after} comes after {names[at]}."
    return f"Which {word} comes before {names[at]}?", f"{before} comes before {names[at]}."


def repeat(rng: Random) -> Turn:
    """A word said again and again."""
    word = rng.choice((*facts.LISTS["fruits"], *facts.LISTS["tools"], *terms.APPS))
    times = rng.randint(3, 8)
    return (
        f"Say the word {word} {facts.spell(times)} times.",
        f"{', '.join([word] * times)}. That is {facts.spell(times)} times.",
    )
