"""Reads texts by GBNF grammars with xgrammar. Runs in an environment of its own.

xgrammar's package imports torch and transformers, which matching texts does not need; therefore its
library is loaded without running the package's `__init__`.

Input is JSON, a list of `[grammar, texts]`. Output is a list with, for each grammar, a list of
booleans, or the message of xgrammar if it refuses the grammar.
"""

import importlib
import importlib.util
import json
import sys
from typing import Any


def load_library() -> Any:
    """Return xgrammar's C++ classes."""
    spec = importlib.util.find_spec("xgrammar")
    assert spec is not None
    sys.modules["xgrammar"] = importlib.util.module_from_spec(spec)
    importlib.import_module("xgrammar.load_binding")
    return importlib.import_module("xgrammar.base")._core


def accept(library: Any, compiler: Any, grammar: str, texts: list[str]) -> list[bool] | str:
    try:
        compiled = compiler.compile_grammar_ebnf(library.Grammar.from_ebnf(grammar, "root"))
    except Exception as error:  # whatever the library raises is its answer
        return str(error).strip().splitlines()[-1]
    return [accepts(library, compiled, text) for text in texts]


def accepts(library: Any, compiled: Any, text: str) -> bool:
    return TextFollower(library, compiled).accepts(text)


class TextFollower:
    """Follows texts by a grammar; from one text to the next it goes back to where they differ."""

    def __init__(self, library: Any, compiled: Any) -> None:
        ends_without_token, max_rollback = True, -1
        self._matcher = library.GrammarMatcher(
            compiled, None, ends_without_token, max_rollback, None
        )
        self._pieces: list[str] = []

    def accepts(self, text: str) -> bool:
        return self.takes_prefix(text) and bool(self._matcher.is_terminated())

    def takes_prefix(self, text: str) -> bool:
        """Whether the grammar accepts a text that begins with this one."""
        while not text.startswith(whole := "".join(self._pieces)):
            self._matcher.rollback(1)
            self._pieces.pop()
        rest = text[len(whole) :]
        if not rest:
            return True
        if not self._matcher.accept_string(rest, False):
            return False
        self._pieces.append(rest)
        return True


def main() -> None:
    library = load_library()
    raw_vocabulary, no_size, no_prefix_space = 0, None, False
    vocabulary = library.TokenizerInfo([], raw_vocabulary, no_size, None, no_prefix_space)
    compiler = library.GrammarCompiler(vocabulary, 1, False, -1)
    jobs = json.load(sys.stdin)
    json.dump([accept(library, compiler, grammar, texts) for grammar, texts in jobs], sys.stdout)


if __name__ == "__main__":
    main()
