"""`python -m checks.grammars [--count 200] [--seed N]`: read texts by our grammars and xgrammar.

For each of the random GBNF grammars, five texts that it matches and five disturbed ones are read by
the engine, by xgrammar in an environment of its own, and by the recognizer of `random_gbnf`. The
exit status is 1 if they differ.
"""

import argparse
import json
import random
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from checks.grammars.random_gbnf import disturb, make_grammar
from checks.grammars.reading import GrammarReader, compiler_of_bytes
from checks.harness.installation import LOCKS, ensure_environment
from specdecode_engine.grammar import GrammarCompiler, GrammarRefused

_TEXTS = 5  # of each kind for each grammar
_READER = Path(__file__).with_name("xgrammar_reader.py")


@dataclass(frozen=True, slots=True)
class Case:
    """A grammar with texts, which of them it matches, and which the engine accepts."""

    grammar: str
    texts: tuple[str, ...]
    expected: tuple[bool, ...]
    accepted: tuple[bool, ...] | str


def make_case(seed: int, number: int, compiler: GrammarCompiler) -> Case:
    """Return a case, the same for a seed and a number."""
    rng = random.Random(f"{seed}/{number}")
    grammar = make_grammar(rng)
    drawn = [grammar.draw(rng) for _ in range(_TEXTS)]
    texts = [*drawn, *(disturb(rng, text) for text in drawn)]
    expected = tuple(map(grammar.matches, texts))
    try:
        reader = GrammarReader(compiler, grammar.source)
        accepted: tuple[bool, ...] | str = tuple(map(reader.accepts, texts))
    except GrammarRefused as refusal:
        accepted = str(refusal)
    return Case(grammar.source, tuple(texts), expected, accepted)


def read_with_xgrammar(cases: list[Case]) -> list[list[bool] | str]:
    """Return what xgrammar accepts of each case, or why it refuses the grammar."""
    python = ensure_environment(LOCKS / "xgrammar.txt")
    done = subprocess.run(
        [str(python), str(_READER)],
        input=json.dumps([(case.grammar, case.texts) for case in cases]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: list[list[bool] | str] = json.loads(done.stdout)
    return answers


def report(case: Case, other: list[bool] | str) -> int:
    """Print where the readers of a case differ; return the number of differences."""
    if isinstance(case.accepted, str) or isinstance(other, str):
        print(f"refused: engine {case.accepted}, xgrammar {other}\n{case.grammar}\n")
        return 1
    rows = zip(case.texts, case.expected, case.accepted, other, strict=True)
    wrong = [row for row in rows if len(set(row[1:])) > 1]
    for text, expected, accepted, by_xgrammar in wrong:
        print(f"{text!r}: matches {expected}, engine {accepted}, xgrammar {by_xgrammar}")
    if wrong:
        print(case.grammar, end="\n\n")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="Compare grammars with xgrammar."
    )
    parser.add_argument("--count", type=int, default=200, help="number of grammars")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    arguments = parser.parse_args()
    compiler = compiler_of_bytes()
    cases = [make_case(arguments.seed, number, compiler) for number in range(arguments.count)]
    answers = read_with_xgrammar(cases)
    differences = sum(report(*each) for each in zip(cases, answers, strict=True))
    matched = sum(sum(case.expected) for case in cases)
    texts = sum(len(case.texts) for case in cases)
    result = {"seed": arguments.seed, "grammars": len(cases), "texts": texts, "matched": matched}
    print(json.dumps({**result, "differences": differences}))
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())
