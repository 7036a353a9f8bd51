"""Fields are read from sources of the peers' kinds, and compared with the rows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from checks.peer_fields.__main__ import compare
from checks.peer_fields.places import CHAT, COMPLETIONS, DECLARATIONS
from checks.peer_fields.request_models import Declaration, fields_of, read_fields
from checks.peer_fields.table import Source, read_request_fields
from checks.peer_flags.declarations import UnreadableSource

LOCKS = Path(__file__).parents[2] / "checks" / "clients" / "locks"

SOURCES = {
    "peer/base.py": """
class Shared(BaseModel):
    names: ClassVar[set[str] | None] = None
    model: str
    _own: str = PrivateAttr(default="")
""",
    "peer/chat.py": """
class Request(Shared):
    limit: int | None = Field(default=None, ge=1)
    schema_: dict | None = Field(default=None, alias="schema")
    order: list[str] = Field(default_factory=list, exclude=True)
    extra = 1
    def check(self):
        local: int = 1
""",
    "sdk/chat.py": """
class Completions:
    @overload
    def create(self, *, model: str, stream: bool, extra_headers=None): ...
    def create(self, *, model: str, seed: int = 1, timeout=None): ...

class AsyncCompletions:
    async def create(self, *, other: str): ...
""",
    "sdk/types.py": """
_Reserved = TypedDict("_Reserved", {"async": bool}, total=False)

class Tool(_Reserved, total=False):
    name: Required[str]
""",
}


@pytest.mark.parametrize(
    ("declaration", "names"),
    [
        (Declaration("peer/chat.py", "Request"), {"model", "limit", "schema"}),
        (Declaration("sdk/chat.py", "Completions", "create"), {"model", "stream", "seed"}),
        (Declaration("sdk/types.py", "Tool"), {"name", "async"}),
    ],
    ids=["request model", "create call", "type of an object"],
)
def test_fields_are_those_that_a_client_sends(declaration, names) -> None:
    assert fields_of(declaration, SOURCES) == names


def test_fields_of_an_object_have_its_name() -> None:
    objects = {
        "": (Declaration("peer/base.py", "Shared"),),
        "tools[]": (Declaration("sdk/types.py", "Tool"),),
    }
    found = read_fields({CHAT: objects}, SOURCES)
    assert found == {CHAT: {"model", "tools[].name", "tools[].async"}}


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (Declaration("peer/none.py", "Request"), "no module peer/none.py"),
        (Declaration("peer/chat.py", "Other"), "no class Other"),
        (Declaration("sdk/chat.py", "AsyncCompletions", "create"), "no method create"),
    ],
)
def test_a_declaration_that_is_missing_is_named(declaration, words) -> None:
    with pytest.raises(UnreadableSource, match=words):
        fields_of(declaration, SOURCES)


def test_a_base_that_was_not_read_is_not_passed_over() -> None:
    alone = {"peer/chat.py": SOURCES["peer/chat.py"]}
    with pytest.raises(UnreadableSource, match="base Shared of Request"):
        fields_of(Declaration("peer/chat.py", "Request"), alone)


def test_fields_without_rows_and_rows_without_fields_are_named() -> None:
    table = read_request_fields()
    few = {
        row.name: row
        for row in table.of(COMPLETIONS)
        if row.name in ("best_of", "add_special_tokens")
    }
    table = replace(table, rows=tuple(few.values()))
    declared = {source: {COMPLETIONS: set[str]()} for source in Source}
    for row in few.values():
        for source in row.sources:
            declared[source][COMPLETIONS].add(row.name)
    assert list(compare(table, declared)) == []
    declared[Source.VLLM][COMPLETIONS] = {"best_of", "new"}
    assert list(compare(table, declared)) == [
        "/v1/completions: best_of: vllm defines it too",
        "/v1/completions: new of vllm has no row",
        "/v1/completions: add_special_tokens has a row, but vllm 0.33.0 has no such field",
    ]


def test_every_path_and_object_of_the_rows_is_read() -> None:
    read = {
        (path, name)
        for paths in DECLARATIONS.values()
        for path, objects in paths.items()
        for name in objects
    }
    rows = read_request_fields().rows
    assert {(row.path, row.name.rpartition(".")[0]) for row in rows} == read


@pytest.mark.parametrize("source", [Source.OPENAI, Source.ANTHROPIC])
def test_the_sdks_are_those_that_make_clients_runs(source: Source) -> None:
    lock = (LOCKS / f"{source}.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{source}==(\S+)", lock, re.MULTILINE)
    assert found is not None
    assert found[1] == read_request_fields().versions[source]
