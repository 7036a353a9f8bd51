#!/usr/bin/env bash
# llguidance 1.9.1: in a JSON Schema's `pattern`, a class that contains all control characters
# contains the quote and the backslash too.
#
# Expected: `^[^"]*$` admits no text with a quote, and `^[^\\]*$` none with a backslash.
# Seen: both admit them, as `\"` and `\\` in JSON. A class that leaves out any one control character,
#   such as `[^"\x00]`, excludes them as it should. So do positive classes without control characters.
# Why it matters: patterns for file names, CSV fields and quoted values are of exactly this kind, and
#   answers that are "guaranteed" to match them do not. An engine can add a control character to each
#   negated class before the library reads the pattern.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.2
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re
from importlib.metadata import version

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


def admits(pattern, text):
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    assert not matcher.is_error(), matcher.get_error()
    for token in (*json.dumps(text).encode(), 256):
        mask = allocate_token_bitmask(1, tokenizer.vocab_size)
        fill_next_token_bitmask(matcher, mask)
        if not mask.view(np.uint32)[0, token // 32] >> np.uint32(token % 32) & 1:
            return False
        if token != 256:
            assert matcher.consume_token(token)
    return True


SEEN = {
    (r'^[^"]*$', 'a"b'): True,
    (r"^[^\\]*$", "a\\b"): True,
    (r'^[^"\x00]*$', 'a"b'): False,
    (r"^[^\\\x00]*$", "a\\b"): False,
    (r"^[^\n]*$", "a\nb"): False,
    (r"^[a-z]*$", 'a"b'): False,
}
print("llguidance", version("llguidance"))
for (pattern, text), expected in SEEN.items():
    found = admits(pattern, text)
    says = re.search(pattern, text) is not None
    print(f"{pattern:16} {json.dumps(text):10} admitted: {found}, matches for Python's re: {says}")
    assert found is expected, "the behaviour has changed"
PYTHON
