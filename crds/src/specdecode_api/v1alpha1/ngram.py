"""Drafting without a model (algorithm NGRAM) in the custom resource."""

from typing import ClassVar, Final, Literal

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.rules import Rule, or_default
from specdecode_api.speculation import (
    DEFAULT_NGRAM_CAPACITY,
    DEFAULT_NGRAM_DEPTH,
    MAX_NGRAM_BREADTH,
    MAX_NGRAM_CAPACITY,
    MAX_NGRAM_DEPTH,
    NgramSource,
)
from specdecode_api.v1alpha1.scalars import Float, Int

_DEEP: Final = DEFAULT_NGRAM_DEPTH[NgramSource.SUFFIX]
_SHALLOW: Final = DEFAULT_NGRAM_DEPTH[NgramSource.TRIE]
_SOURCE: Final = or_default("source", "Suffix")


class NgramSpec(ResourceRecord):
    """Where drafts without a model come from, and how much is remembered."""

    source: Literal["Suffix", "Prompt", "Trie"] = Field(
        default="Suffix",
        description="Data structure: Suffix (a suffix tree with counts), Prompt (a lookup in the "
        "request's own text) or Trie (as in SGLang).",
    )
    scope: Literal["Request", "Model"] = Field(
        default="Request",
        description="Request drafts from the request's own text; Model also from the texts of "
        "other requests, whose content can then be inferred from response times.",
    )
    max_depth: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_NGRAM_DEPTH,
        description="Most tokens of a match, and of a match with its draft in a trie or suffix "
        f"tree; {_DEEP} for Suffix and {_SHALLOW} for the others where absent.",
    )
    min_match: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_NGRAM_DEPTH,
        description="Fewest tokens of a match; 3 for Prompt and 1 for the others where absent.",
    )
    min_breadth: Int = Field(
        default=1,
        ge=1,
        le=MAX_NGRAM_BREADTH,
        description="Fewest children that a node of the trie takes into a draft.",
    )
    max_breadth: Int = Field(
        default=10,
        ge=1,
        le=MAX_NGRAM_BREADTH,
        description="Most children that a node of the trie takes into a draft.",
    )
    match: Literal["BFS", "PROB"] = Field(
        default="BFS",
        description="Order of a trie's children: BFS takes those used last, PROB the most "
        "frequent ones.",
    )
    capacity: Int = Field(
        default=DEFAULT_NGRAM_CAPACITY,
        ge=1,
        le=MAX_NGRAM_CAPACITY,
        description="Most nodes of all tries or suffix trees, about 70 bytes each; each request "
        "has an equal share.",
    )
    min_token_probability: Float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Least product of the shares of counts of a token drafted from a suffix tree.",
    )
    max_spec_factor: Float = Field(
        default=1.0,
        ge=0.1,
        le=16,
        description="Most tokens drafted from a suffix tree, for each token of the match.",
    )

    rules: ClassVar[tuple["Rule[NgramSpec]", ...]] = (
        Rule(
            cel=f"{or_default('minBreadth', 1)} <= {or_default('maxBreadth', 10)}",
            holds=lambda it: it.min_breadth <= it.max_breadth,
            message="minBreadth must not exceed maxBreadth: lower it or raise maxBreadth",
            field="minBreadth",
        ),
        Rule(
            cel="!has(self.minMatch) || self.minMatch <= (has(self.maxDepth) ? self.maxDepth : "
            f"{_SOURCE} == 'Suffix' ? {_DEEP} : {_SHALLOW})",
            holds=lambda it: it.min_match is None or it.min_match <= it.depth,
            message="minMatch must not exceed maxDepth: lower it or raise maxDepth",
            field="minMatch",
        ),
        Rule(
            cel=f"{_SOURCE} != 'Prompt' || {or_default('scope', 'Request')} == 'Request'",
            holds=lambda it: it.source != "Prompt" or it.scope == "Request",
            message="source Prompt has no memory of other requests: use scope Request, or source "
            "Suffix",
            field="scope",
        ),
    )

    @property
    def depth(self) -> int:
        """`max_depth`, or the default of the source."""
        if self.max_depth is not None:
            return self.max_depth
        return _DEEP if self.source == "Suffix" else _SHALLOW
