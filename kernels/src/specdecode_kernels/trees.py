"""Public ops on draft trees: which nodes stay, how they hang together, how far a draft agrees.

Letters: B batch, C candidates, N nodes, root included.
"""

from torch import Tensor

from specdecode_kernels import reference
from specdecode_kernels.implementation import implementation_for


def select_nodes(
    scores: Tensor, tokens: Tensor, parents: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Keep the `count` best candidates of each tree, in the order in which they stand.

    Among equals the lower index is kept. A candidate must stand behind its parent and not score
    above it; then the kept ones contain their ancestors.

    Args:
        scores: [B, C] f32, none of them not-a-number.
        tokens: [B, C] i64.
        parents: [B, C] i64, places among the candidates; -1 for the root.

    Returns:
        Tokens [B, count] i64 and the parents [B, count + 1] i64 of the nodes, root first, whose
        parent is itself.
    """
    if scores.dim() != 2 or tokens.shape != scores.shape or parents.shape != scores.shape:
        raise ValueError(
            f"select_nodes: scores {list(scores.shape)}, tokens {list(tokens.shape)} and parents "
            f"{list(parents.shape)} must all be [batch, candidates]"
        )
    if not 1 <= count <= scores.shape[1]:
        raise ValueError(f"select_nodes: cannot keep {count} of {scores.shape[1]} candidates")
    if implementation_for(scores) == "triton":
        from specdecode_kernels.triton import select_nodes as kernel

        return kernel.select_nodes(scores, tokens, parents, count)
    return reference.select_nodes(scores, tokens, parents, count)


def link_nodes(parents: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Work out depths [B, N] i64 and ancestry [B, N, N] bool of nodes that name their parents.

    Row j of the ancestry marks node j and its ancestors.

    Args:
        parents: [B, N] i64; the root stands first and is its own parent.
        max_depth: bound on the depth of any node.
    """
    if parents.dim() != 2 or not parents.shape[1] or max_depth < 0:
        raise ValueError(
            f"link_nodes: parents {list(parents.shape)} must be [batch, nodes], root included, "
            f"and max_depth {max_depth} not negative"
        )
    if implementation_for(parents) == "triton":
        from specdecode_kernels.triton import link_nodes as kernel

        return kernel.link_nodes(parents, max_depth)
    return reference.link_nodes(parents, max_depth)


def walk_chain(choices: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Count the drafted tokens before the first that the target did not choose.

    Args:
        choices: [B, N] i64, the target's choice at every node.
        drafted: [B, N - 1] i64.

    Returns:
        That number [B] i64 and the choice behind the last of them, the bonus token [B] i64.
    """
    _check_drafted("walk_chain", choices, drafted)
    if implementation_for(choices) == "triton":
        from specdecode_kernels.triton import walk_chain as kernel

        return kernel.walk_chain(choices, drafted)
    return reference.walk_chain(choices, drafted)


def walk_tree(
    choices: Tensor, drafted: Tensor, parents: Tensor, path_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the target's choices from the root down.

    Siblings carry different tokens, so at most one child of a node agrees and the agreeing nodes
    form one path.

    Args:
        choices: [B, N] i64, the target's choice at every node.
        drafted: [B, N - 1] i64, tokens of the nodes but the root.
        parents: [B, N] i64, breadth first: a parent stands before its children.
        path_length: nodes on the longest path, root included.

    Returns:
        Nodes on the path [B, path_length] i64, root first, filled up with the path's last node;
        the number of drafted tokens among them [B] i64; the choice at the last, the bonus token
        [B] i64.
    """
    _check_drafted("walk_tree", choices, drafted)
    if parents.shape != choices.shape:
        raise ValueError(
            f"walk_tree: parents {list(parents.shape)} must name one node for each of choices "
            f"{list(choices.shape)}"
        )
    if not 1 <= path_length <= choices.shape[1]:
        raise ValueError(
            f"walk_tree: a path of {path_length} nodes does not fit {choices.shape[1]} nodes"
        )
    if implementation_for(choices) == "triton":
        from specdecode_kernels.triton import walk_tree as kernel

        return kernel.walk_tree(choices, drafted, parents, path_length)
    return reference.walk_tree(choices, drafted, parents, path_length)


def _check_drafted(op: str, choices: Tensor, drafted: Tensor) -> None:
    fits = choices.dim() == 2 and choices.shape[1] >= 1
    if not fits or drafted.shape != (choices.shape[0], choices.shape[1] - 1):
        raise ValueError(
            f"{op}: choices {list(choices.shape)} must be [batch, nodes], root included, and "
            f"drafted {list(drafted.shape)} [batch, nodes - 1]"
        )
