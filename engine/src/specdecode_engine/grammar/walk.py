"""The token masks of a draft's nodes, by depth-first search."""

from collections.abc import Sequence

from numpy import int32
from numpy.typing import NDArray

from specdecode_engine.grammar.matcher import Matcher, allows


def mask_nodes(
    matcher: Matcher, tokens: Sequence[int], parents: Sequence[int], rows: NDArray[int32]
) -> None:
    """Fill the mask of every node that can be reached; the others allow everything.

    A node whose token its parent forbids can never be accepted, nor can its descendants, and no
    token is sampled after a token that ends the output.

    Args:
        matcher: in the state of the root, and restored unless it raises.
        tokens: the token of every node; the root's is ignored.
        parents: the parent of every node; the root is node 0 and its own parent.
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
