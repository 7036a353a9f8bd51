"""Which engines have computed which beginnings of prompts, as far as this router knows.

The table is rebuilt from traffic: it is lost with the process, and it may be wrong, because engines
evict. A wrong entry costs a prefill, never an answer.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from specdecode_router.routing.prompt_blocks import PromptBlocks

CAPACITY: Final = 100_000
"""Blocks in the table: 51 million characters, about 50 MB."""
SHARED_CONTINUATIONS: Final = 4
"""A block with so many different next blocks belongs to no single conversation."""
ENGINES_PER_BLOCK: Final = 8


@dataclass(slots=True)
class _Block:
    engines: dict[str, None] = field(default_factory=dict)  # the latest last
    continuations: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How many leading blocks of a prompt engines know, and how many are shared by many prompts."""

    depths: Mapping[str, int]
    shared: int = 0


class PrefixTable:
    """A bounded table from block hashes to engines; the least recently used blocks are dropped."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prompt: PromptBlocks) -> PrefixMatch:
        """Find the longest known beginning on each engine."""
        depths: dict[str, int] = {}
        shared = 0
        for depth, digest in enumerate(prompt.hashes):
            block = self._blocks.get(digest)
            if block is None:
                break
            if len(block.continuations) >= SHARED_CONTINUATIONS:
                shared = depth + 1
            for engine in block.engines:
                if depths.get(engine, 0) == depth:
                    depths[engine] = depth + 1
        return PrefixMatch(depths, shared)

    def record(self, prompt: PromptBlocks, engine: str) -> None:
        """Note that an engine computes a prompt.

        The last block is touched first, so that the ends of prompts are dropped before what they
        begin with.
        """
        following: bytes | None = prompt.whole
        for digest in reversed(prompt.hashes):
            block = self._blocks.get(digest)
            if block is None:
                block = self._blocks[digest] = _Block()
            self._blocks.move_to_end(digest)
            if following is not None and len(block.continuations) < SHARED_CONTINUATIONS:
                block.continuations.add(following)
            block.engines.pop(engine, None)
            block.engines[engine] = None
            if len(block.engines) > ENGINES_PER_BLOCK:
                del block.engines[next(iter(block.engines))]
            following = digest
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
