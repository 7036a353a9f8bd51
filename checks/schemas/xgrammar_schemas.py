"""Reads instances by JSON Schemas with xgrammar. Runs in an environment of its own.

Input is JSON, a list of `[schema, instances]`, of which each is a text and whether it is valid.
Output is a list with `[seconds, admitted]` for each: the time of compiling, and a list of booleans,
or the message of xgrammar if it refuses the schema. A valid instance may have any order of members.
`strict_mode` is off: it forbids properties and items that a schema does not mention.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from checks.grammars.xgrammar_reader import TextFollower, load_library
from checks.schemas.member_order import in_some_order


def read(
    library: Any, compiler: Any, schema: Any, instances: list[tuple[str, bool]]
) -> tuple[float, Any]:
    before = time.process_time()
    any_whitespace, indent, separators, is_strict, most_blanks = True, None, None, False, None
    try:
        compiled = compiler.compile_json_schema(
            json.dumps(schema), any_whitespace, indent, separators, is_strict, most_blanks, False
        )
    except Exception as error:  # whatever the library raises is its answer
        return 0.0, str(error).strip().splitlines()[-1]
    compile_s = time.process_time() - before

    follower = TextFollower(library, compiled)

    def admits(text: str, is_valid: bool) -> bool:
        if follower.accepts(text):
            return True
        return is_valid and in_some_order(text, follower.takes_prefix, follower.accepts)

    return compile_s, [admits(text, is_valid) for text, is_valid in instances]


def main() -> None:
    library = load_library()
    vocabulary = library.TokenizerInfo([], 0, None, None, False)
    compiler = library.GrammarCompiler(vocabulary, 1, False, -1)
    jobs = json.load(sys.stdin)
    json.dump(
        [read(library, compiler, schema, instances) for schema, instances in jobs], sys.stdout
    )


if __name__ == "__main__":
    main()
