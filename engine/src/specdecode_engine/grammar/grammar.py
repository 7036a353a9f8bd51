"""A compiled grammar: what every answer of one call starts from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher

from specdecode_engine.grammar.matcher import Matcher
from specdecode_engine.grammar.source import GrammarSource


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar compiled for a vocabulary.

    The outputs that start from one grammar share its lexer and its limits: if one fails, all fail.
    Therefore requests do not share a grammar, even if their sources are equal.
    """

    source: GrammarSource
    eos_token_ids: frozenset[int]
    start_state: LLMatcher = field(repr=False, compare=False)

    def follow(self, output: Sequence[int], ends_late: bool = False) -> Matcher:
        """Return a matcher that continues after `output`; may raise `GrammarFault`."""
        matcher = Matcher(self.start_state.deep_copy(), self.eos_token_ids, ends_late)
        for token in output:
            matcher.advance(token)
        return matcher
