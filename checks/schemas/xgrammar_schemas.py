"""Reads instances by JSON Schemas with xgrammar. Runs in an environment of its own.

Input is JSON, a list of `[schema, texts]`. Output is a list with `[seconds, admitted]` for each:
the time of compiling, and a list of booleans, or the message of xgrammar if it refuses the schema.
`strict_mode` is off: it forbids properties and items that a schema does not mention.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from checks.grammars.xgrammar_reader import accepts, load_library


def read(library: Any, compiler: Any, schema: Any, texts: list[str]) -> tuple[float, Any]:
    before = time.perf_counter()
    any_whitespace, indent, separators, is_strict, most_blanks = True, None, None, False, None
    try:
        compiled = compiler.compile_json_schema(
            json.dumps(schema), any_whitespace, indent, separators, is_strict, most_blanks, False
        )
    except Exception as error:  # whatever the library raises is its answer
        return 0.0, str(error).strip().splitlines()[-1]
    compile_s = time.perf_counter() - before
    return compile_s, [accepts(library, compiled, text) for text in texts]


def main() -> None:
    library = load_library()
    vocabulary = library.TokenizerInfo([], 0, None, None, False)
    compiler = library.GrammarCompiler(vocabulary, 1, False, -1)
    jobs = json.load(sys.stdin)
    json.dump([read(library, compiler, schema, texts) for schema, texts in jobs], sys.stdout)


if __name__ == "__main__":
    main()
