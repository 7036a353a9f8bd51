"""A compiled grammar: what every answer of one call starts from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher

from specdecode_engine.grammar.matcher import Matcher
from specdecode_engine.grammar.source import GrammarSource


@dataclass(frozen=True, slots=True)
class Grammar:
    """Grammar and vocabulary, ready to be followed.

    The answers that start from one grammar share its lexer, and with it its limits: where one is
    given up, all are. So calls do not share a grammar, however alike their sources.
    """

    source: GrammarSource
    eos_token_ids: frozenset[int]
    start_state: LLMatcher = field(repr=False, compare=False)

    def follow(self, output: Sequence[int], ends_late: bool = False) -> Matcher:
        """Start an answer, or take one up behind the tokens it has; may raise `GrammarFault`."""
        matcher = Matcher(self.start_state.deep_copy(), self.eos_token_ids, ends_late)
        for token in output:
            matcher.advance(token)
        return matcher
