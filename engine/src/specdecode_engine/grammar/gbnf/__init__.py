"""GBNF, llama.cpp's notation for grammars, and its translation to llguidance's Lark dialect.

`reader` parses the text into the nodes of `syntax`, with the line and the column of every error.
`rules` looks at references between rules, `lexemes` decides which parts become terminals so that a
greedy lexer accepts exactly the texts of the grammar, and `lark_writer` writes the result.
"""

from specdecode_engine.grammar.gbnf.lark_writer import gbnf_to_lark
from specdecode_engine.grammar.gbnf.syntax import GbnfError

__all__ = ["GbnfError", "gbnf_to_lark"]
