"""How many prompt tokens engines read from their caches: one engine, four by router, by Service."""

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bench.router.programs import TARGET, EngineProgram, RouterProgram

ENGINES = 4
CONTEXT = 8192
TOTAL_CACHE_TOKENS = 96_000
"""Of all engines together: what all conversations need and half as much, when none is twice."""
BRANCH_SHARE = 0.2
ANSWER_TOKENS = 2
WORDS = ("the", "a", "fox", "dog", "and", "it", "in", "tree")  # a token each

Message = dict[str, str]
Client = tuple[aiohttp.ClientSession, str]
"""A session of one connection, and the URL that it leads to."""


@dataclass(frozen=True, slots=True)
class ConversationSizes:
    """How many conversations there are, how long they are, and how many turns run at a time."""

    conversations: int = 200
    turns: int = 4
    system_tokens: int = 2000
    clients: int = 16


@dataclass(slots=True)
class Conversation:
    """Messages so far, and what they were before the latest turn."""

    messages: list[Message]
    before: list[Message] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class CacheCounts:
    """Prompt tokens, and those of them that were in a cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def write_long_model(folder: Path) -> Path:
    """Copy the example model with a longer context; its text does not matter here."""
    shutil.copytree(TARGET, folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder


def cache_flags(tokens: int) -> tuple[str, ...]:
    """Flags of an engine whose cache holds so many tokens."""
    return (
        "--context-length", str(CONTEXT), "--max-total-tokens", str(tokens),
        "--kv-cache-bytes", str(1 << 30), "--enable-prompt-tokens-details",
        "--chunked-prefill-size", "2048",
    )  # fmt: skip


def measure_affinity(
    start: Callable[[int], EngineProgram],
    route: Callable[[list[EngineProgram]], RouterProgram],
    sizes: ConversationSizes,
    seed: int,
) -> dict[str, CacheCounts]:
    """Count cached tokens in each arrangement, with engines that have computed nothing before.

    Args:
        start: starts an engine with a cache of so many tokens.
        route: starts a router in front of engines.
    """
    found: dict[str, CacheCounts] = {}
    for name in ("one", "router", "service"):
        count = 1 if name == "one" else ENGINES
        with ExitStack() as stack:
            engines = [start(TOTAL_CACHE_TOKENS // count) for _ in range(count)]
            for engine in engines:
                stack.callback(engine.close)
            urls = [engine.wait_ready().url for engine in engines]
            if name == "router":
                router = route(engines)
                stack.callback(router.close)
                urls = [router.wait_ready(count).url]
            found[name] = asyncio.run(count_cached(urls, sizes, seed))
    return found


async def count_cached(urls: Sequence[str], sizes: ConversationSizes, seed: int) -> CacheCounts:
    """Hold all conversations; their turns are mixed, and each keeps the order of its own.

    Args:
        urls: one URL for everything, or those of the engines of a Service.
    """
    draw = random.Random(seed)
    system = {"role": "system", "content": _text(draw, sizes.system_tokens)}
    conversations = [Conversation([system]) for _ in range(sizes.conversations)]
    order = [each for each in conversations for _ in range(sizes.turns)]
    draw.shuffle(order)
    turns = [
        (each, _text(draw, draw.randint(20, 120)), draw.random() < BRANCH_SHARE) for each in order
    ]
    counts = CacheCounts()
    free: asyncio.Queue[Client] = asyncio.Queue()

    async def turn(client: Client, conversation: Conversation, text: str, branches: bool) -> None:
        try:
            await _turn(client, conversation, text, branches, counts)
        finally:
            free.put_nowait(client)

    async with _clients(urls, sizes.clients, draw) as clients, asyncio.TaskGroup() as group:
        for client in clients:
            free.put_nowait(client)
        for arguments in turns:
            group.create_task(turn(await free.get(), *arguments))
    return counts


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


@asynccontextmanager
async def _clients(
    urls: Sequence[str], count: int, draw: random.Random
) -> AsyncIterator[list[Client]]:
    """Open clients of one kept connection each; a Service leads it to one engine at random."""
    sessions = [
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) for _ in range(count)
    ]
    try:
        yield [(session, draw.choice(urls)) for session in sessions]
    finally:
        for session in sessions:
            await session.close()


async def _turn(
    client: Client, conversation: Conversation, question: str, branches: bool, counts: CacheCounts
) -> None:
    """Take the next turn of a conversation, or another one in place of the latest."""
    session, url = client
    async with conversation.lock:  # one turn after the other, in the order in which they began
        if branches and conversation.before:
            conversation.messages = conversation.before
        conversation.before = list(conversation.messages)
        conversation.messages.append({"role": "user", "content": question})
        body = {
            "messages": conversation.messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": True,
            "temperature": 1, "seed": 1,
        }  # fmt: skip
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            answer = await response.json()
        content = answer["choices"][0]["message"]["content"] or ""
        conversation.messages.append({"role": "assistant", "content": content})
    usage = answer["usage"]
    counts.prompt_tokens += usage["prompt_tokens"]
    counts.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
