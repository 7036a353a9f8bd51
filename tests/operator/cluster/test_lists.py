"""Lists of the API server, parsed item by item, equal what `json.loads` makes of them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_operator.cluster.cluster import read_list

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('"items:[]{}, \\n', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("items", "name", "metadata")), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(JSON, max_size=4), st.text('"items:[ \\', max_size=12), st.sampled_from((None, 1)))
def test_a_list_equals_that_of_the_json_module(items, token, indent):
    document = {
        "kind": "PodList",
        "metadata": {"resourceVersion": "7", "continue": token},
        "items": items,
        "after": {"items": items},
    }
    text = json.dumps(document, indent=indent)
    assert read_list(text) == document


@pytest.mark.parametrize("document", [{"kind": "PodList", "items": None}, {}, {"metadata": {}}])
def test_a_response_without_items_is_parsed_whole(document):
    assert read_list(json.dumps(document)) == document


@pytest.mark.parametrize(
    "text", ['{"items":[1 2]}', '{"items":[1', '{"items":[1,]}', '{"items":[]', '{"items":[1}']
)
def test_a_list_that_is_cut_or_damaged_is_an_error(text):
    with pytest.raises(ValueError, match=r"character|column"):
        read_list(text)
