"""`make schemas`: cases read from clones, verdicts counted, and the table in its page."""

import json
from pathlib import Path

import pytest

from checks.harness.page_table import marks, with_table
from checks.schemas.__main__ import DOCS, OURS, by_group, table
from checks.schemas.corpora import CorpusMissing, SchemaCase, read_cases
from checks.schemas.member_order import in_some_order
from checks.schemas.own_reader import read_schemas
from checks.schemas.packages import pydantic_types
from checks.schemas.verdicts import Verdict, summarize

COLOUR = {"enum": ["red"]}
CASES = [
    SchemaCase("a", "colour", COLOUR, (('"red"', True), ('"blue"', False))),
    SchemaCase("a", "odd", {"not": {"multipleOf": 2}}, (("3", True),)),
    SchemaCase("b", "order", {"properties": {"x": {}, "y": {}}}, (('{"y": 1, "x": 2}', True),)),
    SchemaCase("b", "numbers", {"properties": {"x": {"const": 2}}}, (('{"x": 2.0}', True),)),
]


def test_both_clones_are_read_or_named(tmp_path: Path) -> None:
    suite = tmp_path / "JSON-Schema-Test-Suite" / "tests" / "draft2020-12"
    bench = tmp_path / "jsonschemabench" / "maskbench" / "data"
    for folder in (suite, bench):
        folder.mkdir(parents=True)
    tests = [{"data": "red", "valid": True}, {"data": "\ud800", "valid": False}]
    cases = [{"schema": each, "description": "d", "tests": tests} for each in (COLOUR, True)]
    (suite / "enum.json").write_text(json.dumps(cases))
    with pytest.raises(CorpusMissing, match="jsonschemabench"):
        read_cases(tmp_path, 1)
    for name in ("Github_easy---o1", "Github_easy---o2", "BFCL_java_0"):
        (bench / f"{name}.json").write_text(json.dumps({"schema": COLOUR, "tests": tests}))
    found = read_cases(tmp_path, 1)
    assert [case.group for case in found] == ["draft 2020-12", "BFCL", "Github_easy", "Github_easy"]
    assert found[0] == SchemaCase("draft 2020-12", "enum: d", COLOUR, (('"red"', True),))
    assert len(read_cases(tmp_path, 2)) == 3


def test_schemas_are_read_by_our_grammars_in_strict() -> None:
    verdicts = read_schemas(CASES)
    assert [each.admitted for each in verdicts] == [(True, False), None, (True,), (False,)]
    assert "not" in verdicts[1].reason
    first, second = by_group(CASES, verdicts).values()
    assert (first.schemas, first.compiled, first.compliant) == (2, 1, 1)
    assert (first.invalid, first.invalid_admitted) == (1, 0)
    assert (second.compiled, second.compliant, second.valid_refused) == (2, 1, 1)


def test_members_of_a_valid_instance_may_have_any_order() -> None:
    taken = '{"a": [1, {"c": "é", "b": {}}], "d": null}'
    text = '{"d": null, "a": [1, {"b": {}, "c": "é"}]}'
    assert in_some_order(text, taken.startswith, taken.__eq__)
    assert not in_some_order(text.replace("1", "2"), taken.startswith, taken.__eq__)
    names = json.dumps(dict.fromkeys("abcdefghij"))
    assert not in_some_order(names, lambda prefix: True, lambda text: False), "too many orders"


def test_an_invalid_instance_that_is_admitted_is_counted() -> None:
    found = summarize(CASES[:1], [Verdict((True, True), 0.5)])
    assert (found.compiled, found.compliant, found.invalid_admitted) == (1, 0, 1)
    assert found.median_compile_ms == 500


def test_the_table_has_a_row_for_each_group() -> None:
    groups = by_group(CASES, read_schemas(CASES))
    rows = table({OURS: groups, "other": groups}).splitlines()
    assert rows[2] == "| a | 2 | 0.500 | 1.000 | 0 of 1 | 0.500 | 1.000 | 0 of 1 |"
    assert len(rows) == 4
    begin, end = marks("schemas")
    page = with_table(DOCS.read_text(), "schemas", "| new |")
    assert f"{begin}\n| new |\n{end}" in page


REFUSED_TYPES = {
    "IPv4Network": "ipv4network",
    "Base64Str": "base64",
    "set": "uniqueItems",
    "frozenset": "uniqueItems",
}


@pytest.mark.filterwarnings("ignore:__int__ returned non-int")  # a network made of true
def test_types_of_pydantic_are_held_or_refused_by_their_keyword() -> None:
    cases = list(pydantic_types())
    verdicts = read_schemas(cases)
    refused = {
        case.name: verdict.reason
        for case, verdict in zip(cases, verdicts, strict=True)
        if verdict.admitted is None
    }
    assert refused.keys() == REFUSED_TYPES.keys()
    assert all(word in refused[name] for name, word in REFUSED_TYPES.items())
    assert all(any(valid for _, valid in case.instances) for case in cases)
    found = summarize(cases, verdicts)
    assert (found.compliant, found.invalid_admitted) == (found.compiled, 0)
