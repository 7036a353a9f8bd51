"""Any command line is converted or refused with a message, and shows no key."""

import shlex

from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdecode_api.peer_flags import read_peer_flags
from specdecode_operator.convert.conversion import ConvertOptions, convert
from specdecode_operator.convert.errors import ConvertError

CANARY = "canary-key-0123456789"
TABLE = read_peer_flags()
JSON = '{"method": "%s", "num_speculative_tokens": %s, "%s": %s}'
VALUES = [
    *("1", "2", "0", "-1", "17", "true", "auto", "", "org/m", "/models/m", "8k", "0.9", "[]", "{}"),
    *("null", "[1]", '["*"]', "fp8", "hermes", "http://host:4317", "a=b", "[" * 2000, '{"a": NaN}'),
    *("\n", "\x7f", "é", "'", "9" * 30, "1e400"),
]
METHODS = ["eagle3", "mtp", "ngram", "suffix", "dflash", "draft_model", "medusa"]
document = st.builds(
    lambda *parts: JSON % parts,
    st.sampled_from(METHODS),
    st.sampled_from(["1", "3", "0", "99", "null", '"3"', "true", "1.5"]),
    st.sampled_from(sorted(TABLE.speculative_config)),
    st.sampled_from(["1", "0", "null", '"org/d"', "[[1, 4, 2]]", "[]", "{}", "true", "0.5", "-1"]),
)
flag = st.sampled_from(sorted(TABLE.by_spelling()))
option = st.one_of(
    st.tuples(flag),
    st.tuples(flag, st.sampled_from(VALUES)),
    st.builds(lambda name, value: (f"{name}={value}",), flag, st.sampled_from(VALUES)),
    st.builds(lambda name, value: (f"{name}.a", value), flag, st.sampled_from(VALUES)),
    st.tuples(st.just("--speculative-config"), document),
)


def attempt(words, runtime):
    line = shlex.join([*words, "--api-key", CANARY])
    try:
        found = convert(line, ConvertOptions(runtime), lambda path: path)
    except ConvertError as error:
        return str(error)
    return "\n".join([found.text(), *found.report()])


@settings(max_examples=200, deadline=None)
@given(st.lists(option, max_size=4), st.sampled_from(["VLLM", "Specdecode"]))
@example(
    [("--speculative-config", '{"method": "mtp", "model": ' + "[" * 700 + "]" * 700 + "}")], "VLLM"
)
def test_any_flags_are_converted_or_refused(options, runtime):
    words = [word for each in options for word in each]
    assert CANARY not in attempt(["vllm", "serve", "org/m", *words], runtime)
