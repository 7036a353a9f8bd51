"""`python -m checks.peer_fields`: every field of a request that another defines has a row.

The request models of vLLM and SGLang and the create calls of the SDKs of OpenAI and Anthropic are
read from the wheels of an index with `ast`, without an import; `--vllm WHEEL` reads a file instead.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping

from checks.peer_fields.places import DECLARATIONS, FILES
from checks.peer_fields.request_models import read_fields
from checks.peer_fields.table import RequestFields, Source, read_request_fields
from checks.peer_flags.wheels import read_sources
from specdecode_api.command_line import ArgumentParser

FieldNames = Mapping[str, set[str]]
"""Names of fields by path."""


def compare(table: RequestFields, declared: Mapping[Source, FieldNames]) -> Iterator[str]:
    """Yield fields without a row, and rows without a field."""
    rows = {(row.path, row.name): row for row in table.rows}
    for source, paths in declared.items():
        for path, names in paths.items():
            for name in sorted(names):
                row = rows.get((path, name))
                if row is None:
                    yield f"{path}: {name} of {source} has no row"
                elif source not in row.sources:
                    yield f"{path}: {name}: {source} defines it too"
    for row in table.rows:
        for source in row.sources:
            if row.name not in declared[source].get(row.path, ()):
                version = table.versions[source]
                yield f"{row.path}: {row.name} has a row, but {source} {version} has no such field"


def main(arguments: list[str]) -> int:
    """Compare; 1 if anything differs."""
    table = read_request_fields()
    parser = ArgumentParser(
        prog="python -m checks.peer_fields", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for source in Source:
        parser.add_argument(f"--{source}", default=table.versions[source], help="version, or wheel")
    versions = vars(parser.parse_args(arguments))
    declared = {
        source: read_fields(
            DECLARATIONS[source], read_sources(source, versions[source], FILES[source])
        )
        for source in Source
    }
    errors = list(compare(table, declared))
    for error in errors:
        print(error)
    for source, paths in declared.items():
        counts = ", ".join(f"{len(names)} of {path}" for path, names in paths.items())
        print(f"{source} {versions[source]}: {counts}")
    print("correct checks/peer_fields/request_fields.toml" if errors else "every field has a row")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
