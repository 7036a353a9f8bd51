"""Schemas read by the engine's grammars in strict, with a token for each byte."""

import json
import time
from collections.abc import Iterable

from tqdm import tqdm

from checks.grammars.reading import GrammarReader, compiler_of_bytes
from checks.schemas.corpora import SchemaCase
from checks.schemas.member_order import in_some_order
from checks.schemas.verdicts import Verdict
from specdecode_engine.grammar import GrammarCompiler, GrammarKind, GrammarRefused
from specdecode_engine.grammar.matcher import GrammarFault


def read_schemas(cases: Iterable[SchemaCase]) -> list[Verdict]:
    """Return the verdict on each case; needs the stack of `nesting.run_with_deep_stack`."""
    compiler = compiler_of_bytes()
    return [_verdict(compiler, case) for case in tqdm(cases, desc="schemas")]


def _verdict(compiler: GrammarCompiler, case: SchemaCase) -> Verdict:
    before = time.process_time()
    try:
        reader = GrammarReader(compiler, json.dumps(case.schema), GrammarKind.JSON_SCHEMA)
    except GrammarRefused as refusal:
        return Verdict(None, reason=str(refusal))
    compile_s = time.process_time() - before
    try:
        return Verdict(tuple(_admits(reader, *each) for each in case.instances), compile_s)
    except GrammarFault as fault:  # a request with this schema is refused after its trial
        return Verdict(None, reason=f"too complex: {fault}")


def _admits(reader: GrammarReader, text: str, is_valid: bool) -> bool:
    """Whether a text is admitted, a valid one in any order of the members of its objects."""
    if reader.accepts(text):
        return True
    return is_valid and in_some_order(text, reader.takes_prefix, reader.accepts)
