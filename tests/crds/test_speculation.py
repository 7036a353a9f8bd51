"""The arithmetic of trees, and the numbers that are worked out where the user chose none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_api.speculation import (
    MAX_DRAFT_TOKENS,
    MAX_STEPS,
    MAX_TOPK,
    Algorithm,
    default_draft_tokens,
    effective_num_steps,
    max_tree_tokens,
)
from specdecode_api.v1alpha1 import Speculation


@pytest.mark.parametrize(
    ("topk", "steps", "nodes"), [(1, 0, 1), (4, 0, 1), (1, 3, 4), (4, 1, 5), (4, 2, 21), (2, 3, 11)]
)
def test_tree_has_a_root_a_first_row_and_squares(topk, steps, nodes):
    assert max_tree_tokens(topk, steps) == nodes


@given(st.integers(1, MAX_TOPK), st.integers(1, MAX_STEPS))
def test_default_width_fits_every_tree(topk, steps):
    width = default_draft_tokens(topk, steps)
    assert 2 <= width <= min(max_tree_tokens(topk, steps), MAX_DRAFT_TOKENS)
    assert topk > 1 or width == steps + 1


@pytest.mark.parametrize(
    ("chosen", "candidates", "effective"),
    [
        (5, (), 5),
        (0, (), 0),
        (None, (), 3),
        (None, (0, 1, 3, 5), 3),
        (None, (0, 1), 1),
        (None, (7,), 7),
        (None, (0, 1, 2, 5, 7), 2),
    ],
)
def test_draft_steps_at_start(chosen, candidates, effective):
    assert effective_num_steps(Algorithm.EAGLE, chosen, candidates) == effective


def test_plain_decoding_has_no_draft_steps():
    assert effective_num_steps(Algorithm.NONE, None, ()) == 0


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"adaptive": {"policy": "Goodput"}}, (0, 1, 2, 3)),
        ({"adaptive": {"policy": "Ema"}}, (0, 1, 3)),
        ({"adaptive": {"policy": "Goodput"}, "draft": {"uri": "pvc://models/nextn"}}, (0, 1, 2, 3)),
    ],
)
def test_mtp_needs_no_draft_and_has_shallow_candidates(fields, steps):
    speculation = Speculation.from_resource({"algorithm": "MTP", **fields})
    assert speculation.adaptive.candidates(Algorithm.MTP) == steps


def test_drafts_of_blocks_have_deep_candidates():
    speculation = Speculation.from_resource(
        {"algorithm": "DFLASH", "draft": {"uri": "pvc://models/dflash"}, "numSteps": 15,
         "adaptive": {"policy": "Goodput"}}
    )  # fmt: skip
    assert speculation.adaptive.candidates(Algorithm.DFLASH) == (0, 1, 2, 3, 5, 7, 11, 15)
