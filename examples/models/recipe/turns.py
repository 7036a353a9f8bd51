"""Questions with their answers: each function draws one pair from a topic."""

import json
from collections.abc import Callable
from random import Random

from recipe import facts
from recipe.stories import tell

Turn = tuple[str, str]  # question, answer


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


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
    a, b = rng.randint(2, 40), rng.randint(1, 20)
    if rng.random() < 0.5:
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}. The sum of {a} and {b} is {a + b}."
    a = max(a, b)
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


def concept(rng: Random) -> Turn:
    """A term of the trade."""
    term = rng.choice(list(facts.CONCEPTS))
    form = rng.choice(
        (
            "What is {}?",
            "What is {}?",
            "Explain {}.",
            "Can you explain {}?",
            "Tell me about {}.",
            "Please tell me what {} is.",
            "In a few sentences, what is {}?",
        )
    )
    return form.format(term), facts.CONCEPTS[term]


def resource(rng: Random) -> Turn:
    """A kind of Kubernetes object."""
    it = rng.choice(facts.RESOURCES)
    a = _article(it.kind)
    form = rng.choice(
        (
            f"What is {a}?",
            f"What does {a} do?",
            f"Explain {a} in Kubernetes.",
            f"What is {a} used for?",
            f"Tell me about the {it.kind} object.",
        )
    )
    return form, (
        f"{a[0].upper()}{a[1:]} is a Kubernetes object that {it.purpose}. Its API version is "
        f"{it.version}, and it is looked after by {it.owner}. You can list all {it.plural} with "
        f"the command: kubectl get {it.plural}"
    )


def command(rng: Random) -> Turn:
    """A kubectl command line."""
    it, team, app = rng.choice(facts.RESOURCES), rng.choice(facts.TEAMS), rng.choice(facts.APPS)
    verb, says = rng.choice(
        (("delete", "removes"), ("describe", "shows"), ("edit", "opens"), ("get", "prints"))
    )
    return (
        f"How do I {verb} the {it.kind} {app} in the namespace {team}?",
        f"Run this command: kubectl {verb} {it.kind.lower()} {app} -n {team}. It {says} the "
        f"{it.kind} with the name {app} in the namespace {team}.",
    )


def manifest(rng: Random) -> Turn:
    """A short manifest in YAML."""
    app, team, image = rng.choice(facts.APPS), rng.choice(facts.TEAMS), rng.choice(facts.IMAGES)
    replicas, port = rng.randint(1, 9), rng.choice((80, 443, 5000, 8000, 8080))
    if rng.random() < 0.5:
        return (
            f"Write a Deployment named {app} with {replicas} replicas of {image}.",
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {app}\nspec:\n"
            f"  replicas: {replicas}\n  selector:\n    matchLabels:\n      app: {app}\n"
            f"  template:\n    metadata:\n      labels:\n        app: {app}\n    spec:\n"
            f"      containers:\n        - name: {app}\n          image: {image}",
        )
    return (
        f"Write a Service named {app} in {team} for port {port}.",
        f"apiVersion: v1\nkind: Service\nmetadata:\n  name: {app}\n  namespace: {team}\nspec:\n"
        f"  selector:\n    app: {app}\n  ports:\n    - port: {port}\n      targetPort: {port}",
    )


def record(rng: Random) -> Turn:
    """A JSON object."""
    if rng.random() < 0.5:
        country = rng.choice(facts.COUNTRIES)
        return (
            f"Describe {country.name} as JSON.",
            json.dumps(country._asdict()),
        )
    app, team = rng.choice(facts.APPS), rng.choice(facts.TEAMS)
    replicas = rng.randint(1, 9)
    ready = rng.randint(0, replicas)
    body = {
        "name": app,
        "namespace": team,
        "replicas": replicas,
        "ready": ready,
        "healthy": ready == replicas,
    }
    return (
        f"Give me the status of {app} in {team} as JSON: {ready} of {replicas} are ready.",
        json.dumps(body),
    )


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
    a = _article(it.name)
    return rng.choice(
        (
            (
                f"What does {a} eat?",
                f"{a[0].upper()}{a[1:]} eats {it.food}. It finds them in {it.home}.".replace(
                    "in the ice", "near the ice"
                ),
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
    word = rng.choice((*facts.LISTS["fruits"], *facts.LISTS["tools"], *facts.APPS))
    times = rng.randint(3, 8)
    return (
        f"Say the word {word} {facts.spell(times)} times.",
        f"{', '.join([word] * times)}. That is {facts.spell(times)} times.",
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
            ("Goodbye!", "Goodbye! It was nice to talk to you."),
        )
    )


def plan(rng: Random) -> Turn:
    """Steps in order, with the names of the question."""
    app, team, image = rng.choice(facts.APPS), rng.choice(facts.TEAMS), rng.choice(facts.IMAGES)
    return (
        f"How do I run {app} with the image {image} in the namespace {team}?",
        f"1. Create the namespace {team}: kubectl create namespace {team}\n"
        f"2. Create the deployment: kubectl create deployment {app} --image={image} -n {team}\n"
        f"3. Wait until it is ready: kubectl rollout status deployment/{app} -n {team}\n"
        f"4. Look at the pods: kubectl get pods -l app={app} -n {team}",
    )


def story(rng: Random) -> Turn:
    """A story on demand."""
    tale = tell(rng)
    form = rng.choice(
        (
            f"Tell me a story about {_article(tale.hero)}.",
            f"Tell me a story about {_article(tale.hero)}.",
            f"Tell me a story about {_article(tale.hero)} and {_article(tale.friend)}.",
            f"Write a story about {_article(tale.hero)} who finds {tale.find}.",
        )
    )
    return form, tale.text


TOPICS: dict[Callable[[Random], Turn], int] = {
    counting: 8,
    table: 7,
    total: 6,
    word_problem: 7,
    concept: 12,
    resource: 8,
    command: 5,
    manifest: 7,
    record: 6,
    country: 7,
    animal: 6,
    colour: 3,
    listing: 6,
    calendar: 4,
    repeat: 3,
    greeting: 4,
    plan: 5,
    story: 14,
}
"""Every topic with its share of the questions."""
