"""The count of tuning constants: what is one, and how many the adaptive policies have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "count_constants.py"
BEFORE = 100  # numeric literals before goodput was reduced


def count(*arguments: str) -> dict[str, object]:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("source", "constants"),
    [
        ("x = 0.3", 1),
        ("x = -1; y = 2.0; z = True", 0),
        ("seconds = 1e3 * x / 60", 0),
        ("limit = 1000", 1),
        ("x = y * 1.5 + 7", 2),
    ],
)
def test_plain_numbers_and_unit_factors_are_no_constants(
    tmp_path: Path, source: str, constants: int
) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert count(str(module)) == {"files": {"module.py": constants}, "total": constants}


def test_the_adaptive_policies_have_at_most_half_of_their_former_constants() -> None:
    files = count()["files"]
    assert isinstance(files, dict)
    # A policy does not detect drafts that do not fit.
    policies = {name: constants for name, constants in files.items() if "draft_" not in name}
    assert len(policies) >= 5
    assert sum(policies.values()) <= BEFORE / 2
