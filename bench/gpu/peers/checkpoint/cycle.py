"""The cycle of tokens that a target emits, and what a head drafts that agrees on some of them."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CYCLE_SEED = 1
AGREEMENT_SEED = 2
CYCLE_FILE = "cycle.json"
"""Written last: where it is, the checkpoint is complete."""
ANSWERS_FILE = "answers.json"
"""Of a checkpoint without a cycle: prompts with their answers."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """Tokens in the order in which they follow one another; the first follows the last.

    Position j of an agreement is about the token after `order[j]`: 1 if the head drafts the
    target's token, 0 if another one.
    """

    order: tuple[int, ...]

    @classmethod
    def draw(cls, length: int) -> "Cycle":
        """Return the cycle through the tokens below `length`, the same in every run."""
        order = list(range(length))
        random.Random(CYCLE_SEED).shuffle(order)
        return cls(tuple(order))

    @classmethod
    def read(cls, checkpoint: Path) -> "Cycle":
        """Read the cycle of a checkpoint."""
        return cls(tuple(json.loads((checkpoint / CYCLE_FILE).read_text())["order"]))

    def successors(self) -> list[int]:
        """Return by token the one that follows: perm."""
        return self._follow(self.order)

    def drafted(self, agreement: Sequence[int]) -> list[int]:
        """Return by token the one that a head with this agreement drafts, also a permutation.

        Raises:
            ValueError: not one bit per token, or a single 0, for which no other token is left.
        """
        if len(agreement) != len(self.order):
            raise ValueError(
                f"{len(agreement)} agreement bits for a cycle of {len(self.order)} tokens; "
                "give one per token"
            )
        wrong = [place for place, agrees in enumerate(agreement) if not agrees]
        if len(wrong) == 1:
            raise ValueError(f"one 0 alone, at position {wrong[0]}; use none, or two and more")
        drafted = list(range(len(self.order)))
        for place, other in zip(wrong, wrong[1:] + wrong[:1], strict=True):
            drafted[place] = other
        return self._follow([self.order[place] for place in drafted])

    def _follow(self, order: Sequence[int]) -> list[int]:
        """Return by token what follows: after `self.order[j]`, the successor of `order[j]`."""
        after = dict(zip(self.order, (*self.order[1:], self.order[0]), strict=True))
        found = [0] * len(self.order)
        for token, other in zip(self.order, order, strict=True):
            found[token] = after[other]
        return found


def draw_agreement(length: int, share: float) -> tuple[int, ...]:
    """Return bits with this share of ones, at random positions, the same in every run."""
    bits = [1] * round(share * length)
    bits += [0] * (length - len(bits))
    random.Random(AGREEMENT_SEED).shuffle(bits)
    return tuple(bits)


def count_wrong(successors: Sequence[int], prompt: Sequence[int], answer: Sequence[int]) -> int:
    """Count the tokens of an answer that do not follow from the token before them."""
    before = (prompt[-1], *answer[:-1])
    return sum(
        not 0 <= one < len(successors) or successors[one] != token
        for one, token in zip(before, answer, strict=True)
    )
