"""Grammars of the kinds that llama.cpp publishes, restated: compiled, followed, and read."""

import pytest

from checks.grammars.reading import GrammarReader, compiler_of_bytes
from specdecode_engine.grammar import GrammarCompiler, GrammarKind, GrammarSource
from specdecode_engine.grammar.trial import walk

JSON = r"""
# Objects with blanks after marks. The blanks refer to themselves.
root ::= map
any ::= map | seq | text | int | word
map ::=
  "{" blank (
            text ":" blank any
    ("," blank text ":" blank any)*
  )? "}"
seq ::=
  "[" blank (
            any
    ("," blank any)*
  )? "]"
text ::=
  "\"" (
    [\x20\x21\x23-\x5b\x5d-\U0010FFFF] | # all but " (\x22) and \ (\x5c)
    "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\""
int ::= "-"? [0-9]+ blank
word ::= ("true" | "false") blank
blank ::= ([ \t\n] blank)?
"""
BOUNDED_JSON = r"""
root ::= "[\n" ws (any (",\n" ws any)*)? "]"
any ::= map | "[" ws (any ("," ws any)*)? "]" ws | text | number | ("true" | "false" | "null") ws
map ::= "{" ws (text ":" ws any ("," ws text ":" ws any)*)? "}" ws
text ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
CHESS = r"""
root ::= (
    # the first move of both sides
    "1. " ply " " ply "\n"

    # and more
    ([1-9] [0-9]? ". " ply " " ply "\n")+
)
ply ::= (pawn | piece | castling) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castling ::= "O-O" "-O"?
"""
SUMS = r"""
root ::= (sum "=" ws value "\n")+
sum ::= value ([-+*/] value)*
value ::= name | digits | "(" ws sum ")" ws
name ::= [a-z] [a-z0-9_]* ws
digits ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
CODE = r"""
root ::= (function)*
function ::= kind name "(" (kind name)? ")" "{" statement* "}"
kind ::= "int" gap | "char" gap
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::=
    ( kind name gap "=" gap sum ";" ) |
    ( name gap "(" sum? ")" ";" ) |
    ( "return" gap sum ";" ) |
    ( "while" "(" sum order sum ")" "{" statement* "}" ) |
    ( "//" [^\n]* "\n" ) |
    ( "/*" ( [^*] | ("*" [^/]) )* "*/" )
order ::= ("<=" | "<" | "==")
sum ::= factor(("+" | "-") factor)*
factor ::= name | [0-9]+ | "-" factor | name "(" sum? ")" | "(" gap sum gap ")"
gap ::= ([ \t\n]+)
"""
LIST = r"""
root ::= item+

# Without line breaks
item ::= "- " [^\r\n\x0b\x0c\x85\u2028]+ "\n"
"""
ENGLISH = """
root ::= char+ ([ \\t\\n] char+)*
char ::= [a-zA-Z] | [0-9] | [!"#$%&'()*+,-./:;<=>?@[\\\\\\]^_`{|}~]
"""
JAPANESE = (
    "root ::= jp+ ([ \\t\\n] jp+)*\njp ::= kana | [、-〾] | [一-鿿]\nkana ::= [ぁ-ゟ] | [ァ-ヿ]\n"
)
SCHEMA = r"""
age ::= ([0-9] | ([1-8] [0-9] | [9] [0-9]) | "1" ([0-4] [0-9] | [5] "0")) space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
item ::= "{" space "\"name\"" space ":" space name "," space "\"age\":" space age "}" space
name ::= "\"" char{1,100} "\"" space
root ::= "[" space item ("," space item){1,99} "]" space
space ::= | " " | "\n" [ \t]{0,20}
"""

GRAMMARS = {
    "json": (
        JSON,
        ['{}', '{"a\\u00e9": [1, -2, {"b": "é😀"}], "c": true}', '{ "x":\n[ ]}'],
        ["[]", '{"a"}', '{"a": 1,}', '{"a": "\\x"}'],
    ),
    "bounded json": (
        BOUNDED_JSON,
        ["[\n]", '[\n{"a": [1.5e+3 ,"b"]},\nnull]', "[\n-0]"],
        ["[]", "[\n01]", '[\n"a\x7f"]', "[\n1  ]"],
    ),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 exd5+\n3. O-O-O a8=Q#\n10. Rad1 Kxh8\n"],
        ["1. e4 e5\n", "1. e4\n2. e5 e6\n", "2. e4 e5\n2. e4 e5\n"],
    ),
    "sums": (
        SUMS,
        ["a=b\n", "a1*(b +2 )=c_\n", "x\n=\n y\n\n\n3-4= 5\n"],
        ["a=b", "=b\n", "1a=b\n", "a b=c\n"],
    ),
    "code": (
        CODE,
        ["", "int f(){}", "char  g(int x){int y = -f(1)+(\t2\n);return x;}"
         "int h(){while(a<=1){print (x);}// a\n/* b*c */}"],
        ["intf(){}", "int f(){x;}", "int f(){/* */ */}"],
    ),
    "list": (LIST, ["- a\n", "- é b\n- c\n"], ["- \n", "- a", "- a\r\n"]),
    "english": (ENGLISH, ["It's [a] \\test\\.", "a\nb"], ["é", " a", "a  b"]),
    "japanese": (JAPANESE, ["ひらカタ 漢字、", "あ"], ["a", "あ ", ""]),
    "schema": (
        SCHEMA,
        ['[{"name":"A\\n","age":150},{"name": "b" ,"age": 7}]'],
        ['[{"name":"A","age":1}]', '[{"name":"","age":1},{"name":"b","age":1}]',
         '[{"name":"A","age":151},{"name":"b","age":1}]'],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def byte_compiler() -> GrammarCompiler:
    return compiler_of_bytes()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_known_grammar_accepts_its_texts(byte_compiler: GrammarCompiler, name: str) -> None:
    source, right, wrong = GRAMMARS[name]
    reader = GrammarReader(byte_compiler, source)
    assert [text for text in right if not reader.accepts(text)] == []
    assert [text for text in wrong if reader.accepts(text)] == []
    walk(
        byte_compiler.compile(GrammarSource(GrammarKind.EBNF, source)), byte_compiler.num_words, 64
    )
