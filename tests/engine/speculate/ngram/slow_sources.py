"""The sources of NGRAM restated without any data structure of theirs: slow, and easy to check."""

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

Tokens = tuple[int, ...]


class Limits(NamedTuple):
    max_tokens: int
    max_depth: int = 999
    max_children: int = 999


class SlowDraft:
    """Nodes in order of creation; equal tokens after one node are one node where `merges`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths = [0]

    @property
    def is_full(self) -> bool:
        return len(self.tokens) == self.limits.max_tokens

    def add(self, parent: int, token: int, *, merges: bool = True) -> int | None:
        children = [node for node, at in enumerate(self.parents, start=1) if at == parent]
        for node in children if merges else []:
            if self.tokens[node - 1] == token:
                return node
        is_deep = self.depths[parent] >= self.limits.max_depth
        if self.is_full or is_deep or len(children) >= self.limits.max_children:
            return None
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens)


class SlowTrie:
    """Paths in dictionaries; `last_use` orders the leaves that go."""

    def __init__(
        self,
        depth: int,
        capacity: int,
        least: int,
        most: int,
        *,
        by_count: bool,
        min_match: int = 1,
    ) -> None:
        self.depth, self.capacity = min(depth, capacity), capacity
        self.min_breadth, self.max_breadth = least, most
        self.by_count, self.min_match = by_count, min_match
        self.counts: Counter[Tokens] = Counter()
        self.last_use: dict[Tokens, int] = {}
        self.touched: dict[Tokens, int] = {}
        self._clock = count()

    def insert(self, text: Sequence[int]) -> None:
        for start in range(len(text)):
            self._insert_path(tuple(text[start : start + self.depth]))

    def _insert_path(self, path: Tokens) -> None:
        while self.capacity - len(self.counts) < len(path):
            parents = {node[:-1] for node in self.counts}
            leaf = min((n for n in self.counts if n not in parents), key=self.last_use.__getitem__)
            for kept in (self.counts, self.last_use, self.touched):
                del kept[leaf]
        nodes = [path[:length] for length in range(1, len(path) + 1)]
        for node in nodes:
            self.counts[node] += 1
            self.touched[node] = next(self._clock)
        for node in reversed(nodes):
            self.last_use[node] = next(self._clock)

    def _children(self, node: Tokens) -> list[Tokens]:
        children = [n for n in self.counts if len(n) == len(node) + 1 and n[:-1] == node]
        if self.by_count:
            return sorted(children, key=lambda n: (-self.counts[n], n))[: self.max_breadth]
        return sorted(children, key=lambda n: -self.touched[n])

    def draft(self, context: Sequence[int], limits: Limits) -> SlowDraft:
        draft = SlowDraft(limits)
        for matched in range(min(len(context), self.depth), self.min_match - 1, -1):
            anchor = tuple(context[-matched:])
            if anchor in self.counts:
                (self._by_count if self.by_count else self._by_use)(anchor, matched, draft)
        return draft

    def _by_use(self, anchor: Tokens, matched: int, draft: SlowDraft) -> None:
        fall = (self.max_breadth - self.min_breadth) / max(self.depth - 1.0, 1.0)
        queue = [(0, self.min_breadth + (self.depth - 1.0 - matched) * fall, anchor)]
        for at, breadth, node in queue:
            for child in self._children(node)[: max(int(breadth), 1)]:
                if draft.is_full:
                    return
                made = draft.add(at, child[-1])
                if made is not None:
                    queue.append((made, breadth - fall, child))

    def _by_count(self, anchor: Tokens, matched: int, draft: SlowDraft) -> None:
        heap: list[tuple[float, int, int, Tokens]] = []
        order = count()

        def push(node: Tokens, at: int, value: float) -> None:
            children = self._children(node)
            total = sum(self.counts[child] for child in children)
            for child in children:
                share = self.counts[child] / total * value
                heapq.heappush(heap, (-share, next(order), at, child))

        push(anchor, 0, 1.0)
        while heap and not draft.is_full:
            value, _, at, child = heapq.heappop(heap)
            made = draft.add(at, child[-1])
            if made is not None:
                push(child, made, -value)


class SlowSuffixes:
    """Counts of every string of at most `depth` tokens in the texts."""

    def __init__(self, depth: int, factor: float = 1.0, least: float = 0.1) -> None:
        self.depth, self.factor, self.least = depth, factor, least
        self.texts: list[list[int]] = []

    def counts(self) -> Counter[Tokens]:
        return Counter(
            tuple(text[start:end])
            for text in self.texts
            for start in range(len(text))
            for end in range(start + 1, min(start + self.depth, len(text)) + 1)
        )

    def draft(self, context: Sequence[int], limits: Limits) -> tuple[SlowDraft, float, int]:
        counts, context = self.counts(), tuple(context[-self.depth :])
        best, best_score, best_match = SlowDraft(limits), 0.0, 0
        for matched in range(1, len(context)):
            anchor = context[-matched:]
            if anchor not in counts:
                break
            most = min(limits.max_tokens, int(matched * self.factor + 1e-6))
            draft = SlowDraft(limits._replace(max_tokens=most))
            grow = self._path if limits.max_children == 1 else self._tree
            score = grow(counts, anchor, draft)
            if draft.tokens and score >= best_score:
                best, best_score, best_match = draft, score, matched
        return best, best_score, best_match

    def _children(self, counts: Counter[Tokens], node: Tokens) -> list[Tokens]:
        children = [n for n in counts if len(n) == len(node) + 1 and n[:-1] == node]
        return sorted(children, key=lambda n: (-counts[n], n))

    def _path(self, counts: Counter[Tokens], node: Tokens, draft: SlowDraft) -> float:
        score, probability, at = 0.0, 1.0, 0
        while children := self._children(counts, node):
            probability *= counts[children[0]] / counts[node]
            if probability < self.least:
                break
            made = draft.add(at, children[0][-1])
            if made is None:
                break
            score, node, at = score + probability, children[0], made
        return score

    def _tree(self, counts: Counter[Tokens], node: Tokens, draft: SlowDraft) -> float:
        score, order = 0.0, count()
        heap: list[tuple[float, int, int, Tokens]] = []

        def push(node: Tokens, at: int, value: float) -> None:
            for child in self._children(counts, node):
                product = value * (counts[child] / counts[node])
                if product >= self.least:
                    heapq.heappush(heap, (-product, next(order), at, child))

        push(node, 0, 1.0)
        while heap and not draft.is_full:
            value, _, at, child = heapq.heappop(heap)
            made = draft.add(at, child[-1], merges=False)
            if made is not None:
                score -= value
                push(child, made, -value)
        return score


def slow_lookup(text: Sequence[int], least: int, most: int, max_tokens: int) -> list[int]:
    """Try every length of a match and every place, as the rule is written."""
    text = list(text)
    for matched in range(min(most, len(text) - 1), least - 1, -1):
        for end in range(matched, len(text)):
            if text[end - matched : end] == text[-matched:]:
                return text[end : end + max_tokens]
    return []
