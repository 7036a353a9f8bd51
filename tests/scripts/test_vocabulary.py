"""The vocabulary check: what counts as prose, where a finding is, and what excuses it."""

import pytest

from scripts.class_names import duplicates
from scripts.vocabulary import EXCLUDED, ROOT, TABLE, check_file, read_rules

RULES = read_rules(
    "\\btold\\b\treported\n"
    "\\bas it stands\\b\teagerly\n"
    "\\bplaces\\b\tslots\tdecimal places|places where\n"
    "(?<!there )\\bis no (?!longer)\\w+\tis not a ...\n"
    "\\bdepth\\b\tdraft steps\t\tcrds/|operator/\n"
)


def found(file: str, text: str) -> list[str]:
    return [f"{finding.line}: {finding.found}" for finding in check_file(file, text, RULES)[0]]


def test_strings_of_python_are_checked_with_their_lines() -> None:
    text = '"""Caption.\n\nIs told here."""\nx = f"it was {told} told"\ny = ("a b "\n  "told c")\n'
    assert found("a.py", text) == ["3: told", "4: told", "6: told"]


def test_a_phrase_is_found_across_lines_of_docstrings_and_comments() -> None:
    assert found("a.py", '"""Runs as it\nstands."""\n') == ["1: as it stands"]
    assert found("a.py", "x = 1\n# run as it\n# stands\n") == ["2: as it stands"]


def test_names_and_single_words_of_python_are_not_prose() -> None:
    assert found("a.py", 'told = {"told": told}\n"""See `told` and `as it stands`."""\n') == []


def test_markdown_is_checked_outside_code_and_link_targets() -> None:
    text = (
        "# Told\n\n`told` and ``told``\n\n```sh\necho told\n```\n\n"
        "    told as code\n\n[is told](told.md) https://x/told\n"
    )
    assert found("a.md", text) == ["1: Told", "11: told"]


def test_yaml_is_checked_except_for_keys_and_a_makefile_in_comments() -> None:
    assert found("a.yaml", "told: yes\n# told\nmessage: was told\n") == ["2: told", "3: told"]
    assert found("Makefile", "told: ## Is told\n\techo told\n") == ["1: told"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Two decimal places, and places where it fits.\n", []),
        ("Two places.\n", ["1: places"]),
        ("There is no file. It is no longer there.\n", []),
        ("It is no file.\n", ["1: is no file"]),
    ],
)
def test_contexts_allow_a_word(text: str, lines: list[str]) -> None:
    assert found("a.md", text) == lines


@pytest.mark.parametrize(
    ("file", "lines"), [("operator/a.md", ["1: depth"]), ("engine/a.md", []), ("a/crds/a.md", [])]
)
def test_a_rule_may_be_for_some_files_only(file: str, lines: list[str]) -> None:
    assert found(file, "The depth of it.\n") == lines


def test_an_exemption_excuses_its_word_on_its_line_and_is_counted() -> None:
    text = "Was told. <!-- vocabulary: allow told: a quotation -->\nWas told.\n"
    findings, uses = check_file("a.md", text, RULES)
    assert [finding.line for finding in findings] == [2]
    assert uses == {("a.md", 1): 1}


def test_an_exemption_that_excuses_nothing_is_noticed() -> None:
    _, uses = check_file("a.md", "<!-- vocabulary: allow told: a quotation -->\n", RULES)
    assert uses == {("a.md", 1): 0}


def test_the_table_is_readable_and_matches_its_examples() -> None:
    rules = read_rules(TABLE.read_text(encoding="utf-8"))
    assert len(rules) > 30
    for text in ("the log tells", "nodes behind it", "is no JSON", "retracted", "listed anew"):
        assert check_file("a.md", text, rules)[0], text
    for text in ("it lags behind it", "there is no file", "rounded up", "three decimal places"):
        assert not check_file("a.md", text, rules)[0], text


@pytest.mark.parametrize("prefix", EXCLUDED)
def test_what_is_left_out_exists(prefix: str) -> None:
    assert (ROOT / prefix).exists() or list(ROOT.glob(f"{prefix}*")), f"remove {prefix}"


def test_a_class_name_that_is_defined_twice_is_listed_with_both_files() -> None:
    sources = [("a.py", "class A: ...\n"), ("b.py", "class B:\n    class A: ...\n")]
    assert duplicates(sources) == {"A": ["a.py:1", "b.py:2"]}
