"""`python -m rollout --seed N [--quick]`: a table and, last, one line of JSON."""

import argparse
import json
import sys
from dataclasses import dataclass

from tqdm import tqdm

from rollout.figures import try_all
from rollout.months import TRIALS, try_for_months
from rollout.scenarios import all_scenarios
from rollout.table import header, is_met, row
from rollout.ways import others, reported


@dataclass(frozen=True, slots=True)
class Extent:
    """Runs of each candidate in each scenario: for the last line, and for the other rows."""

    runs: int
    other_runs: int
    loops: int


FULL, QUICK = Extent(250, 25, 400), Extent(20, 2, 40)


def main() -> int:
    """Try every rule in every scenario."""
    parser = argparse.ArgumentParser(prog="rollout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    extent = QUICK if options.quick else FULL
    result: dict[str, dict[str, dict[str, float | None]]] = {}
    for scenario in tqdm(all_scenarios(), desc="scenarios"):
        figures = try_all(scenario, reported(), options.seed, extent.runs)
        result[scenario.name] = {name: figures[name].reported() for name in figures}
        figures |= try_all(scenario, others(), options.seed, extent.other_runs)
        print(header(scenario.name))
        for name in figures:
            print(row(name, figures[name]), flush=True)
        print(f"ours: {'every aim met' if is_met(figures['ours']) else 'an aim is missed (*)'}")
    for has_budget in (True, False):
        loop = try_for_months(extent.loops, options.seed, has_budget)
        name = "error budget" if has_budget else "1 % for each trial"
        print(f"\n{TRIALS} equal candidates in a row, {name}: {loop.wrong:.2f} promoted wrongly,")
        print(f"any in {loop.any_wrong:.1%} of {extent.loops} loops")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
