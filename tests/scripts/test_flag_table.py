"""docs/from-vllm-and-sglang.md has every flag of the table, and what each conversion does."""

from checks.peer_fields.table import read_request_fields
from checks.peer_server.comparison import read_comparison
from checks.peer_server.table import read_endpoints, read_metric_rows
from scripts import server_tables
from scripts.flag_table import document, main, undescribed
from specdecode_api.peer_flags import Peer, read_peer_flags


def test_the_page_is_that_of_the_rows() -> None:
    assert main(["--check"]) == 0


def test_every_flag_and_key_is_in_the_page() -> None:
    table = read_peer_flags()
    page = document(table, read_request_fields())
    for name in (*table.flags, *table.earlier, *table.speculative_config):
        assert f"`{name}`" in page


def test_every_conversion_is_described() -> None:
    assert list(undescribed()) == []


def test_every_field_of_a_request_is_in_the_table_of_its_path() -> None:
    fields = read_request_fields()
    sections = document(read_peer_flags(), fields).split("\n### Fields of ")
    tables = {part.partition("\n")[0]: part for part in sections[1:]}
    assert list(tables) == list(fields.paths)
    for row in fields.rows:
        assert f"`{row.name}`" in tables[row.path]


def test_every_endpoint_and_metric_is_in_its_section() -> None:
    endpoints = read_endpoints()
    page = document(read_peer_flags(), read_request_fields())
    paths, metrics = page.partition("\n## Endpoints\n")[2].split("\n## Metrics\n")
    for row in endpoints.rows:
        assert f" {row.path}`" in paths
    for metric in read_metric_rows():
        for name in (*metric.theirs, *metric.here):
            assert f"`{name}`" in metrics


def test_the_comparison_names_the_source_of_every_claim() -> None:
    comparison = read_comparison()
    section = server_tables.comparison(comparison)
    for peer in Peer:
        for _, claim in comparison.claims(peer):
            assert f"{claim.text} (`{claim.source}`)" in section
