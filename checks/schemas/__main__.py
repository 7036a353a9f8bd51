"""`python -m checks.schemas FOLDER [--every 1] [--docs]`: read schemas here and by xgrammar.

FOLDER holds clones of json-schema-org/JSON-Schema-Test-Suite and guidance-ai/jsonschemabench; the
types of zod and pydantic come from the packages. The last line is JSON. `--docs` writes the table
into docs/api.md. The exit status is 1 if a grammar of ours admits an invalid instance.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checks.harness.installation import LOCKS, PeerUnavailable, ensure_environment
from checks.harness.page_table import with_table
from checks.schemas.corpora import CorpusMissing, SchemaCase, read_cases
from checks.schemas.own_reader import read_schemas
from checks.schemas.packages import read_packages
from checks.schemas.verdicts import GroupResult, Verdict, summarize
from specdecode_engine.grammar.nesting import run_with_deep_stack

DOCS = Path(__file__).resolve().parents[2] / "docs" / "api.md"
OURS, PEER = "here, strict", "xgrammar 0.2.8"
SHOWN_REASONS = 12
Results = Mapping[str, Mapping[str, GroupResult]]


def main() -> int:
    """Read all schemas by both libraries, print a table and the most frequent refusals."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="schemas", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="read every N-th real schema")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/api.md")
    options = parser.parse_args()
    try:
        cases = [*read_cases(options.folder, options.every), *read_packages()]
    except (CorpusMissing, PeerUnavailable) as missing:
        parser.error(str(missing))
    own = run_with_deep_stack(lambda: read_schemas(cases))
    results = {OURS: by_group(cases, own), PEER: by_group(cases, read_with_xgrammar(cases))}
    shown = table(results)
    print(shown)
    if options.docs:
        DOCS.write_text(with_table(DOCS.read_text(), "schemas", shown))
    reasons = Counter(verdict.reason[: SHOWN_REASONS * 6] for verdict in own if verdict.reason)
    for reason, count in reasons.most_common(SHOWN_REASONS):
        print(f"{count:6} {reason}", file=sys.stderr)
    print(json.dumps({name: {g: asdict(r) for g, r in of.items()} for name, of in results.items()}))
    return 1 if any(result.invalid_admitted for result in results[OURS].values()) else 0


def read_with_xgrammar(cases: Sequence[SchemaCase]) -> list[Verdict]:
    """Return the verdicts of xgrammar, in a process with an environment of its own."""
    python = ensure_environment(LOCKS / "xgrammar.txt")
    program = Path(__file__).with_name("xgrammar_schemas.py")
    jobs = [(case.schema, case.instances) for case in cases]
    done = subprocess.run(
        [str(python), str(program)],
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each keyword that it ignores
        text=True,
        check=True,
    )
    answers: list[tuple[float, Any]] = json.loads(done.stdout)
    return [
        Verdict(None, reason=found) if isinstance(found, str) else Verdict(tuple(found), seconds)
        for seconds, found in answers
    ]


def by_group(cases: Sequence[SchemaCase], verdicts: Sequence[Verdict]) -> dict[str, GroupResult]:
    """Return the result of each group, in the order of the cases."""
    groups = defaultdict[str, list[tuple[SchemaCase, Verdict]]](list)
    for case, verdict in zip(cases, verdicts, strict=True):
        groups[case.group].append((case, verdict))
    return {name: summarize(*zip(*pairs, strict=True)) for name, pairs in groups.items()}


def table(results: Results) -> str:
    """Return a Markdown table: a row for each group, and columns for each library."""
    names = [*results]
    head = ["schemas of", "number"]
    for name in names:
        head += [f"{name}: compiled", "compliant", "invalid admitted"]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for group, first in results[names[0]].items():
        cells = [group, str(first.schemas)]
        for name in names:
            found = results[name][group]
            cells += [
                f"{found.compiled / found.schemas:.3f}",
                f"{found.compliant / found.compiled:.3f}" if found.compiled else "–",
                f"{found.invalid_admitted} of {found.invalid}",
            ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
