"""The text of the small world: chats and plain pages, drawn with a seed, some prompts held out."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from zlib import crc32

from recipe import pages
from recipe.facts import Turn
from recipe.turns import TOPICS

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a tiny model. Answer briefly.",
    "You help people who run a Kubernetes cluster.",
)

CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nYou may call tools, described in <tools></tools>.\n<tools>"
    "{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\\n' }}</tools>\nCall one with\n<tool_call>"
    '\n{"name": "its name", "arguments": {}}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'tool' %}<tool_response>\n{{ message['content'] }}\n</tool_response>"
    "{% else %}{{ message['content'] or '' }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}{{ '\\n' }}<tool_call>\n"
    '{"name": {{ call["function"]["name"] | tojson }}, '
    '"arguments": {{ call["function"]["arguments"] | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Tools are in Hermes' format. The models were trained without any."""

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
    """Say whether the training text must not contain this question or opening: one in ten.

    Blanks around it do not count, so that a question is held out of chats and pages alike.
    """
    return text not in SHOWN and crc32(text.strip().encode()) % 10 == 0


def render(messages: list[dict[str, str]]) -> str:
    """Write messages as the chat template does, closed by the end of the text."""
    parts = [f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages]
    return "".join(parts) + END_OF_TEXT


def _turn(rng: Random) -> tuple[str, Turn]:
    (topic,) = rng.choices(list(TOPICS), list(TOPICS.values()))
    return topic.__name__, topic(rng)


def _page(rng: Random) -> tuple[str, pages.Page]:
    page = rng.choice(pages.PAGES)
    return page.__name__, page(rng)


def documents(seed: int) -> Iterator[str]:
    """Yield training documents for ever, none of which holds a held-out prompt."""
    rng = Random(seed)
    while True:
        if rng.random() < 0.2:
            _, (opening, rest) = _page(rng)
            if not is_held_out(opening):
                yield opening + rest + END_OF_TEXT
            continue
        messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] * (rng.random() < 0.3)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            topic, (question, answer) = _turn(rng)
            if is_held_out(question):
                continue
            if topic == "story" and is_held_out(pages.two_sentences(answer)):
                continue  # the beginning of this story is a prompt among the pages
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        if messages and messages[-1]["role"] == "assistant":
            yield render(messages)


def prompts(seed: int, count: int, per_topic: int, held_out: bool) -> list[Prompt]:
    """Draw different prompts, at most `per_topic` of a topic: held out, or from the training."""
    rng = Random(seed)
    found: dict[str, Prompt] = {}
    drawn: dict[tuple[str, str], int] = {}
    for _ in range(1000 * count):
        if len(found) == count:
            return list(found.values())
        if rng.random() < 0.25:
            topic, (text, _) = _page(rng)
            kind = "text"
        else:
            topic, (text, _) = _turn(rng)
            kind = "chat"
        key = (kind, topic)
        if is_held_out(text) != held_out or text in found or drawn.get(key, 0) >= per_topic:
            continue
        drawn[key] = drawn.get(key, 0) + 1
        found[text] = Prompt(kind, topic, text)
    raise RuntimeError(f"found only {len(found)} of {count} prompts")
