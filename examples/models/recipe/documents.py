"""The text of the small world: chats and plain pages, drawn with a seed, some prompts held out."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from zlib import crc32

from recipe import facts
from recipe.stories import tell
from recipe.turns import TOPICS, Turn, counting

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a tiny model. Answer briefly.",
    "You help people who run a Kubernetes cluster.",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SHOWN = frozenset(
    (
        "What is speculative decoding?",
        "Count from one to twenty.",
        "Tell me a story about a fox.",
        "What is a Deployment?",
        "What is the capital of France?",
    )
)
"""Questions of the demo: always in the training text, never called held out."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A held-out beginning: a question of a chat, or the first words of a page."""

    kind: str  # "chat" or "text"
    topic: str
    text: str


def is_held_out(text: str) -> bool:
    """Say whether the training text must not contain this question or opening: one in ten."""
    return text not in SHOWN and crc32(text.encode()) % 10 == 0


def render(messages: list[dict[str, str]]) -> str:
    """Write messages as the chat template does, closed by the end of the text."""
    parts = [f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages]
    return "".join(parts) + END_OF_TEXT


def _turn(rng: Random) -> tuple[str, Turn]:
    (topic,) = rng.choices(list(TOPICS), list(TOPICS.values()))
    return topic.__name__, topic(rng)


def _page(rng: Random) -> tuple[str, str, str]:
    """Draw a plain page: topic, opening (long enough to be a prompt), and the rest."""
    kind = rng.randrange(5)
    if kind == 0:
        text = tell(rng).text
        cut = text.index(".", text.index(".") + 1) + 1
        return "story", text[:cut], text[cut:]
    if kind == 1:
        question, answer = counting(rng)
        return "counting", f"{question}\n", answer
    if kind == 2:
        app, team = rng.choice(facts.APPS), rng.choice(facts.TEAMS)
        replicas = rng.randint(2, 6)
        lines = [f"{app}-{i} started in {team}, {i} of {replicas}" for i in range(1, replicas + 1)]
        opening = f"log of {app} in {team}: {replicas} replicas\n"
        return "log", opening, "\n".join([*lines, f"{app} is ready in {team}"])
    if kind == 3:
        word, other = rng.sample(("add", "sub", "mul", "div", "power"), 2)
        sign = {"add": "+", "sub": "-", "mul": "*", "div": "/", "power": "**"}
        a, b = rng.sample("abcnmxyz", 2)
        opening = f"def {word}({a}, {b}):\n"
        rest = (
            f"    return {a} {sign[word]} {b}\n\n\ndef {other}({a}, {b}):\n"
            f"    return {a} {sign[other]} {b}\n\n\nprint({word}(4, 2))\nprint({other}(4, 2))\n"
        )
        return "code", opening, rest
    one, two = rng.sample(facts.COUNTRIES, 2)
    opening = f"{one.name} and {two.name} are two countries."
    rest = " ".join(
        f"{it.name} is in {it.continent}. Its capital is {it.capital}, and many people there "
        f"speak {it.language}."
        for it in (one, two)
    )
    return "countries", opening, f" {rest}"


def documents(seed: int) -> Iterator[str]:
    """Yield training documents for ever, none of which holds a held-out prompt."""
    rng = Random(seed)
    while True:
        if rng.random() < 0.2:
            _, opening, rest = _page(rng)
            if not is_held_out(opening):
                yield opening + rest + END_OF_TEXT
            continue
        messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] * (rng.random() < 0.3)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            _, (question, answer) = _turn(rng)
            if not is_held_out(question):
                messages.append({"role": "user", "content": question})
                messages.append({"role": "assistant", "content": answer})
        if messages and messages[-1]["role"] == "assistant":
            yield render(messages)


def prompts(seed: int, count: int, held_out: bool = True) -> list[Prompt]:
    """Draw different prompts, as evenly over the topics as they come: held out, or trained on."""
    rng = Random(seed)
    found: dict[str, Prompt] = {}
    per_topic: dict[tuple[str, str], int] = {}
    limit = count // 12 + 1
    for _ in range(1000 * count):
        if len(found) == count:
            return list(found.values())
        if rng.random() < 0.25:
            topic, text, _ = _page(rng)
            kind = "text"
        else:
            topic, (text, _) = _turn(rng)
            kind = "chat"
        key = (kind, topic)
        if is_held_out(text) != held_out or text in found or per_topic.get(key, 0) >= limit:
            continue
        per_topic[key] = per_topic.get(key, 0) + 1
        found[text] = Prompt(kind, topic, text)
    raise RuntimeError(f"found only {len(found)} of {count} prompts")
