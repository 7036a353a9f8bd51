"""docs/models.md is made of a recorded run of the zoo that has every type that is listed."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.zoo.results import write_results
from scripts.model_table import StaleResults, check_results

SERVED, REFUSED = {"llama", "gemma2"}, {"lfm2"}


def results(**changes: Any) -> dict[str, Any]:
    found = {"models": {"llama": {}, "gemma2": {}}, "refused": {"lfm2": "why"}, "mismatches": 0}
    return {**found, **changes}


def test_results_of_all_types_are_accepted() -> None:
    check_results(results(), SERVED, REFUSED)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"models": {"llama": {}}}, "gemma2"),
        ({"models": {"llama": {}, "gemma2": {}, "mixtral": {}}}, "mixtral"),
        ({"refused": {}}, "lfm2"),
        ({"refused": {"lfm2": "why", "gemma2": "why"}}, "gemma2"),
        ({"mismatches": 1}, "it has mismatches"),
    ],
)
def test_results_of_other_types_are_stale(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(StaleResults, match=named):
        check_results(results(**changes), SERVED, REFUSED)


def test_what_the_zoo_writes_names_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "models-zoo-2026-01-01.json"
    found = {"transformers": {"logits": 1e-6, "STANDALONE": 3.0}}
    report = {"seed": 5, "refused": {"lfm2": "why"}, "mismatches": 0}
    write_results(file, report, {"llama": found, "gemma2": found, "lfm2": {}})
    written = json.loads(file.read_text())
    check_results(written, SERVED, REFUSED)
    assert written["models"] == {"llama": found, "gemma2": found}
    assert written["command"].startswith('make models-zoo ARGS="--seed 5')
    assert all(written[key] for key in ("processor", "commit", "date"))
