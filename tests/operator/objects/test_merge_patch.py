"""Merge patches: the examples of RFC 7386, and that `difference` is the inverse."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_operator.objects.merge_patch import difference, merge_patch

# RFC 7386, appendix A: target, patch, result.
EXAMPLES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), EXAMPLES)
def test_a_patch_gives_the_result_of_the_rfc(target, patch, result):
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == result
    assert (target, patch) == before


VALUES = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES)


@given(DOCUMENTS, DOCUMENTS)
def test_a_difference_leads_from_one_document_to_the_other(source, target):
    patch = difference(source, target)
    assert merge_patch(source, patch) == target
    assert (patch == {}) == (source == target)


def test_a_difference_contains_only_what_differs():
    source = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert difference(source, {"a": {"b": 1, "c": [2]}}) == {"a": {"c": [2]}, "d": None}
