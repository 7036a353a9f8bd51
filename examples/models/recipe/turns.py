"""Questions of the world, and every topic with its share."""

from collections.abc import Callable
from random import Random

from recipe import cluster, facts, sums
from recipe.facts import Turn
from recipe.stories import tell


def country(rng: Random) -> Turn:
    """A country and its capital."""
    it = rng.choice(facts.COUNTRIES)
    return rng.choice(
        (
            (
                f"What is the capital of {it.name}?",
                f"The capital of {it.name} is {it.capital}. {it.name} is a country in "
                f"{it.continent}, and many people there speak {it.language}.",
            ),
            (
                f"Where is {it.name}?",
                f"{it.name} is a country in {it.continent}. Its capital is {it.capital}.",
            ),
            (
                f"Which language do people speak in {it.name}?",
                f"Many people in {it.name} speak {it.language}. {it.name} is a country in "
                f"{it.continent}, and its capital is {it.capital}.",
            ),
            (
                f"Which country has the capital {it.capital}?",
                f"{it.capital} is the capital of {it.name}, a country in {it.continent}.",
            ),
        )
    )


def animal(rng: Random) -> Turn:
    """An animal and its ways."""
    it = rng.choice(facts.ANIMALS)
    a = facts.article(it.name)
    return rng.choice(
        (
            (
                f"What does {a} eat?",
                f"{a[0].upper()}{a[1:]} eats {it.food}. It finds them in {it.home}.",
            ),
            (
                f"Where does {a} live?",
                f"The {it.name} of our stories lives in {it.home}. It eats {it.food}.",
            ),
            (
                f"How many legs does {a} have?",
                f"{a[0].upper()}{a[1:]} has {facts.spell(it.legs)} legs.",
            ),
            (
                f"Tell me about the {it.name}.",
                f"The {it.name} is a {it.trait} animal with {facts.spell(it.legs)} legs. It lives "
                f"in {it.home} and eats {it.food}. In our stories the {it.name} is always "
                f"{it.trait}.",
            ),
        )
    )


def colour(rng: Random) -> Turn:
    """A colour of a thing, or of a mixture."""
    if rng.random() < 0.5:
        thing, shade = rng.choice(list(facts.COLOURED.items()))
        return f"What colour is {thing}?", f"{thing[0].upper()}{thing[1:]} is {shade}."
    (one, two), mixed = rng.choice(list(facts.MIXES.items()))
    if rng.random() < 0.5:
        one, two = two, one
    return (
        f"What do you get when you mix {one} and {two}?",
        f"When you mix {one} and {two} you get {mixed}.",
    )


def greeting(rng: Random) -> Turn:
    """A first word between people."""
    name = rng.choice(facts.NAMES)
    return rng.choice(
        (
            ("Hello!", "Hello! How can I help you today?"),
            ("Hi!", "Hello! How can I help you today?"),
            (f"Hello, my name is {name}.", f"Hello {name}! How can I help you today?"),
            (
                "Who are you?",
                "I am a tiny language model that was trained on a small world of made-up text. I "
                "can count, do sums, tell stories and explain speculative decoding.",
            ),
            (
                "What can you do?",
                "I can count, do sums, tell stories, write small manifests, name capitals and "
                "explain speculative decoding. Ask me about a fox or about Kubernetes.",
            ),
            ("Thank you!", "You are welcome! Ask me again when you need more help."),
            ("Bye!", "Goodbye! It was nice to talk to you."),
        )
    )


def story(rng: Random) -> Turn:
    """A story on demand."""
    tale = tell(rng)
    form = rng.choice(
        (
            f"Tell me a story about {facts.article(tale.hero)}.",
            f"Tell me a story about {facts.article(tale.hero)}.",
            f"Tell me a story about {facts.article(tale.hero)} and {facts.article(tale.friend)}.",
            f"Write a story about {facts.article(tale.hero)} who finds {tale.find}.",
        )
    )
    return form, tale.text


TOPICS: dict[Callable[[Random], Turn], int] = {
    sums.counting: 8,
    sums.table: 7,
    sums.total: 9,
    sums.word_problem: 7,
    cluster.concept: 12,
    cluster.resource: 8,
    cluster.command: 5,
    cluster.manifest: 7,
    cluster.record: 6,
    country: 7,
    animal: 6,
    colour: 3,
    sums.listing: 6,
    sums.calendar: 4,
    sums.repeat: 3,
    greeting: 4,
    cluster.plan: 5,
    story: 14,
}
"""Every topic with its share of the questions."""
