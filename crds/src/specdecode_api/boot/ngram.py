"""Drafting without a model (algorithm NGRAM) in the boot file."""

from collections.abc import Iterator

from pydantic import Field, model_validator

from specdecode_api.base import FileRecord
from specdecode_api.speculation import (
    DEFAULT_NGRAM_CAPACITY,
    DEFAULT_NGRAM_DEPTH,
    DEFAULT_NGRAM_MIN_MATCH,
    MAX_NGRAM_BREADTH,
    MAX_NGRAM_CAPACITY,
    MAX_NGRAM_DEPTH,
    NgramMatch,
    NgramScope,
    NgramSource,
)


class NgramBoot(FileRecord):
    """Where drafts without a model come from, and how much is remembered."""

    source: NgramSource = Field(
        default=NgramSource.SUFFIX,
        description="Data structure: suffix (a suffix tree with counts), prompt (a lookup in the "
        "request's own text) or trie (as in SGLang).",
    )
    scope: NgramScope = Field(
        default=NgramScope.REQUEST,
        description="request drafts from the request's own text; model also from the texts of "
        "other requests, whose content can then be inferred from response times.",
    )
    max_depth: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NGRAM_DEPTH,
        description="Most tokens of a match, and of a match with its draft in a trie or suffix "
        "tree; 64 for suffix and 18 for the others if null.",
    )
    min_match: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NGRAM_DEPTH,
        description="Fewest tokens of a match; 3 for prompt and 1 for the others if null.",
    )
    min_breadth: int = Field(
        default=1,
        ge=1,
        le=MAX_NGRAM_BREADTH,
        description="Fewest children that a node of the trie takes into a draft.",
    )
    max_breadth: int = Field(
        default=10,
        ge=1,
        le=MAX_NGRAM_BREADTH,
        description="Most children that a node of the trie takes into a draft.",
    )
    match: NgramMatch = Field(
        default=NgramMatch.BFS,
        description="Order of a trie's children: BFS takes those used last, PROB the most "
        "frequent ones.",
    )
    capacity: int = Field(
        default=DEFAULT_NGRAM_CAPACITY,
        ge=1,
        le=MAX_NGRAM_CAPACITY,
        description="Most nodes of all tries or suffix trees; each request has an equal share.",
    )
    min_token_probability: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Least product of the shares of counts of a token drafted from a suffix tree.",
    )
    max_spec_factor: float = Field(
        default=1.0,
        gt=0,
        le=16,
        description="Most tokens drafted from a suffix tree, for each token of the match.",
    )

    @property
    def depth(self) -> int:
        """`max_depth`, or the default of the source."""
        return DEFAULT_NGRAM_DEPTH[self.source] if self.max_depth is None else self.max_depth

    @property
    def shortest_match(self) -> int:
        """`min_match`, or the default of the source, at most `depth`."""
        if self.min_match is not None:
            return self.min_match
        return min(DEFAULT_NGRAM_MIN_MATCH[self.source], self.depth)

    @model_validator(mode="after")
    def _check(self) -> "NgramBoot":
        errors = tuple(self._errors())
        if errors:
            raise ValueError("; ".join(errors))
        return self

    def _errors(self) -> Iterator[str]:
        if self.min_breadth > self.max_breadth:
            yield (
                f"min_breadth {self.min_breadth} is more than max_breadth {self.max_breadth}: "
                "lower it or raise max_breadth"
            )
        if self.shortest_match > self.depth:
            yield (
                f"min_match {self.shortest_match} is more than max_depth {self.depth}: lower it "
                "or raise max_depth"
            )
        if self.source is NgramSource.PROMPT and self.scope is NgramScope.MODEL:
            yield (
                "source prompt has no memory of other requests: use scope request, or source suffix"
            )
