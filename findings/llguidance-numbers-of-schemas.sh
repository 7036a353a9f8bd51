#!/usr/bin/env bash
# llguidance 1.9.1 reads the numbers of a JSON Schema as 64-bit floats.
#
# Expected: integers in a schema are JSON integers, so `const: 9007199254740993` forces these digits,
#   and `exclusiveMinimum: 9007199254740992` on integers excludes that number.
# Seen: the constant forces its neighbour ...992, and the excluded number is admitted, because 2^53 + 1
#   is 2^53 as a float. `minimum: 9007199254740993` admits ...992 as well.
# Why it matters: ids and amounts of 64 bits (snowflake ids, nanoseconds) become other numbers in
#   answers that are "guaranteed" to match their schema. An engine has to check numbers itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.2
"$folder/venv/bin/python" - <<'PYTHON'
import json

import llguidance
import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask


class Bytes:
    """A vocabulary of single bytes and an end."""

    tokens = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    special_token_ids, eos_token_id, bos_token_id = [256], 256, None

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def admits(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    for token in (*text.encode(), 256):
        mask = allocate_token_bitmask(1, tokenizer.vocab_size)
        fill_next_token_bitmask(matcher, mask)
        if not mask.view(np.uint32)[0, token // 32] >> np.uint32(token % 32) & 1:
            return False
        if token != 256:
            assert matcher.consume_token(token)
    return True


print("llguidance", llguidance.__version__ if hasattr(llguidance, "__version__") else "1.9.1")
seen = {
    "const 9007199254740993 admits 9007199254740993": admits({"const": 2**53 + 1}, "9007199254740993"),
    "const 9007199254740993 admits 9007199254740992": admits({"const": 2**53 + 1}, "9007199254740992"),
    "minimum 9007199254740993 admits 9007199254740992": admits(
        {"type": "integer", "minimum": 2**53 + 1}, "9007199254740992"
    ),
    "exclusiveMinimum 9007199254740992 admits 9007199254740992": admits(
        {"type": "integer", "exclusiveMinimum": 2**53}, "9007199254740992"
    ),
    "minimum 9007199254740991 admits 9007199254740990": admits(
        {"type": "integer", "minimum": 2**53 - 1}, "9007199254740990"
    ),
}
for text, value in seen.items():
    print(f"{text}: {value}")
assert list(seen.values()) == [False, True, True, True, False], "the behaviour has changed"
PYTHON
