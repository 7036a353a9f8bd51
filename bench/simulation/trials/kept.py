"""Results of tasks in a file of JSON lines, so that a run of hours can be stopped and continued.

Each line contains a digest of the judge's code and of this package; results of other code are not
used.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.simulation import trials
from bench.simulation.trials.cells import CASES, Kind, Outcome, Task
from bench.simulation.trials.worlds import WORLDS
from specdecode_operator import judge
from specdecode_operator.trial.strategies import early_alarms, guard, looks

WORLD_OF = {world.name: world for world in WORLDS}
TRIAL_MODULES = (early_alarms, guard, looks)
"""What this package imports from the operator's trials."""
CASE_OF = {case.name: case for case in CASES}


def code_digest() -> str:
    """Digest of the code that results depend on."""
    packages = (Path(next(iter(package.__path__))) for package in (judge, trials))
    files = [path for folder in packages for path in sorted(folder.glob("*.py"))]
    digest = hashlib.sha256()
    for path in (*files, *(Path(str(module.__file__)) for module in TRIAL_MODULES)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def read(file: Path) -> dict[Task, Outcome]:
    """Results in the file that this code has found; none if there is no file.

    A last line without its end was being written when the run was stopped; it is removed.

    Raises:
        ValueError: a line is not the result of a task, with its number.
    """
    if not file.exists():
        return {}
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    found, code = {}, code_digest()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            task, outcome = _parse(row)
            if row["code"] == code:
                found[task] = outcome
        except (ValueError, KeyError, TypeError) as error:
            message = f"{file}:{number}: not the result of a task ({error!r}); remove the line"
            raise ValueError(message) from error
    return found


def append(file: Path, task: Task, outcome: Outcome) -> None:
    """Add a result."""
    file.parent.mkdir(parents=True, exist_ok=True)
    row = {
        "code": code_digest(),
        "kind": task.kind.value, "world": task.world.name, "pods": task.pods,
        "case": task.case.name, "seed": task.seed, "first": task.first, "runs": task.runs,
        "verdicts": dict(outcome.verdicts), "reasons": dict(outcome.reasons),
        "minutes": outcome.minutes, "requests": outcome.requests,
    }  # fmt: skip
    with file.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def _parse(row: Mapping[str, Any]) -> tuple[Task, Outcome]:
    task = Task(
        Kind(row["kind"]),
        WORLD_OF[row["world"]],
        row["pods"],
        CASE_OF[row["case"]],
        row["seed"],
        row["runs"],
        row["first"],
    )
    outcome = Outcome(
        row["verdicts"], row["reasons"], tuple(row["minutes"]), tuple(row["requests"])
    )
    if outcome.runs != task.runs:
        raise ValueError(f"{outcome.runs} of {task.runs} trials")
    return task, outcome
