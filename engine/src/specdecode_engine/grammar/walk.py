"""The masks of a draft's nodes: down every branch the grammar allows, and back."""

from collections.abc import Sequence

from numpy import int32
from numpy.typing import NDArray

from specdecode_engine.grammar.matcher import Matcher, allows


def mask_nodes(
    matcher: Matcher, tokens: Sequence[int], parents: Sequence[int], rows: NDArray[int32]
) -> None:
    """Fill the mask of every node that can be reached; the others allow everything.

    A node whose token its parent forbids can never be accepted, nor can what hangs on it, and
    nothing is chosen behind a token that ends the answer.

    Args:
        matcher: stands at the root; and again afterwards, unless it raises.
        tokens: the node's tokens; the root's means nothing.
        parents: of every node; the root stands first and is its own.
        rows: [nodes, W] i32, written.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for node in range(1, len(tokens)):
        children[parents[node]].append(node)
    rows[:] = -1

    def visit(node: int) -> None:
        matcher.fill(rows[node])
        for child in children[node]:
            token = tokens[child]
            if matcher.ends_with(token) or not allows(rows[node], token):
                continue
            matcher.advance(token)
            visit(child)
            matcher.rollback()

    visit(0)
