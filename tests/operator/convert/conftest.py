"""Command lines, and what converts them."""

from pathlib import Path

import pytest
import yaml

from specdecode_operator.convert.conversion import ConvertOptions, convert

FOLDER = Path(__file__).parent


def read_file(path):
    return Path(path).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def converted():
    """Convert a command line; keywords are those of `ConvertOptions`."""

    def run(line, **wanted):
        return convert(line, ConvertOptions(**wanted), read_file)

    return run


def pytest_generate_tests(metafunc):
    for name, file in (("good", "command_lines.yaml"), ("bad", "bad_command_lines.yaml")):
        if name in metafunc.fixturenames:
            cases = yaml.safe_load((FOLDER / file).read_text())
            ids = [case.get("name") or case["message"][:40] for case in cases]
            metafunc.parametrize(name, cases, ids=ids)
