"""Checks of the ops on trees and accepted paths; see `checked`."""

from torch import Tensor


def check_gather_accepted(values: Tensor, path: Tensor) -> None:
    if values.dim() < 2 or path.dim() != 2 or values.shape[0] != path.shape[0]:
        raise ValueError(
            f"gather_accepted: values {list(values.shape)} must be [batch, nodes, ...] and path "
            f"{list(path.shape)} [batch, steps]"
        )


def check_compact_kv(
    k: Tensor,
    v: Tensor,
    page_table: Tensor,
    req_indices: Tensor,
    lengths: Tensor,
    path: Tensor,
    page_size: int,
) -> None:
    if k.dim() != 4 or v.shape[:-1] != k.shape[:-1] or page_table.dim() != 2:
        raise ValueError(
            f"compact_kv: k {list(k.shape)} and v {list(v.shape)} must both be [layers, rows, "
            f"kv_heads, dim], equal but for dim, and page_table {list(page_table.shape)} "
            "[requests, pages]"
        )
    if not (k.is_contiguous() and v.is_contiguous() and page_table.is_contiguous()):
        raise ValueError("compact_kv: k, v and page_table must be contiguous; pass them whole")
    if path.dim() != 2 or req_indices.shape != path.shape[:1] or lengths.shape != path.shape[:1]:
        raise ValueError(
            f"compact_kv: req_indices {list(req_indices.shape)} and lengths {list(lengths.shape)} "
            f"must be one number for each row of path {list(path.shape)}"
        )
    if page_size < 1 or k.shape[1] % page_size:
        raise ValueError(
            f"compact_kv: {k.shape[1]} cache rows are not a multiple of the page size, {page_size}"
        )


def check_select_tree_nodes(scores: Tensor, tokens: Tensor, parents: Tensor, count: int) -> None:
    if scores.dim() != 2 or tokens.shape != scores.shape or parents.shape != scores.shape:
        raise ValueError(
            f"select_tree_nodes: scores {list(scores.shape)}, tokens {list(tokens.shape)} and "
            f"parents {list(parents.shape)} must all be [batch, candidates]"
        )
    if not 1 <= count <= scores.shape[1]:
        raise ValueError(f"select_tree_nodes: cannot keep {count} of {scores.shape[1]} candidates")


def check_build_tree_mask(parents: Tensor, max_depth: int) -> None:
    if parents.dim() != 2 or not parents.shape[1] or max_depth < 0:
        raise ValueError(
            f"build_tree_mask: parents {list(parents.shape)} must be [batch, nodes], root "
            f"included, and max_depth {max_depth} not negative"
        )


def check_verify_chain(choices: Tensor, drafted: Tensor) -> None:
    fits = choices.dim() == 2 and choices.shape[1] >= 1
    if not fits or drafted.shape != (choices.shape[0], choices.shape[1] - 1):
        raise ValueError(
            f"verify: choices {list(choices.shape)} must be [batch, nodes], root included, and "
            f"drafted {list(drafted.shape)} [batch, nodes - 1]"
        )


def check_verify_tree(choices: Tensor, drafted: Tensor, parents: Tensor, path_length: int) -> None:
    check_verify_chain(choices, drafted)
    if parents.shape != choices.shape:
        raise ValueError(
            f"verify_tree: parents {list(parents.shape)} must name one node for each of choices "
            f"{list(choices.shape)}"
        )
    if not 1 <= path_length <= choices.shape[1]:
        raise ValueError(
            f"verify_tree: a path of {path_length} nodes does not fit {choices.shape[1]} nodes"
        )
