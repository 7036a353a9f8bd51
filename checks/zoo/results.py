"""The file of what a run of the zoo has found, of which docs/models.md is made."""

import datetime
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from checks.harness.machine import processor_model

Findings = dict[str, dict[str, float]]
"""By implementation: the largest difference of logits in parts of the largest logit (`logits`),
lossless cases by name of the draft or cache, and steps by static graphs."""


def write_results(file: Path, report: Mapping[str, object], models: Mapping[str, Findings]) -> None:
    """Write the report and the findings of every served type, with where and when they are from."""
    git = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(
        git, check=True, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    record = {
        "command": f'make models-zoo ARGS="--seed {report["seed"]} --results FILE"',
        "processor": processor_model(),
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
        **report,
        "models": {name: found for name, found in models.items() if found},
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
