"""`python -m bench.cpu.base_comparison BASE [--quick]`: ratios and, last, one line of JSON."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tqdm import tqdm

from bench.cpu.base_comparison.checkout import Side, base_side, own_environment, this_side
from bench.cpu.base_comparison.figures import Comparison, Figures, compare, numbers, unmatched
from checks.harness.machine import processor_model

SECTIONS = ("host", "versus", "adaptive")
REPEATS = 5
TIMEOUT_S = 1800

Pair = tuple[Figures, Figures]


class SideFailed(Exception):
    """A side's benchmark ended without a result; the message holds the end of its output."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a figure is worse than the base's by more than the limit."""
    options = _options(arguments)
    sides = (base_side(options.base), this_side())
    pairs = list(measure(sides, options.only, options.repeats, options.quick))
    compared = compare(pairs)
    print("\n".join(table(compared)))
    print(json.dumps(summary(sides, compared, pairs, options.repeats), ensure_ascii=False))
    return int(any(one.is_worse for one in compared.values()))


def measure(
    sides: tuple[Side, Side], sections: Sequence[str], repeats: int, is_quick: bool
) -> Iterator[Pair]:
    """Yield the figures of both sides, section by section; the order of the sides changes."""
    turns = [(repeat, section) for repeat in range(repeats) for section in sections]
    for number, (_, section) in enumerate(tqdm(turns, desc="pairs")):
        order = sides if number // len(sections) % 2 == 0 else sides[::-1]
        found = {side.name: run_section(side, section, is_quick) for side in order}
        yield found["base"], found["new"]


def run_section(side: Side, section: str, is_quick: bool) -> Figures:
    """Run one section of a side's own benchmark.

    Raises:
        SideFailed: it ended without a line of JSON.
    """
    command = [str(side.python), "-m", "bench.cpu.engine", *(["--quick"] * is_quick)]
    command += ["--only", section]
    done = subprocess.run(
        command,
        cwd=side.root,
        env=own_environment(side.root),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        end = (done.stdout + done.stderr)[-2000:]
        raise SideFailed(f"{side.name} ({side.commit[:12]}), section {section}: {end}")
    return dict(numbers(json.loads(lines[-1])))


def table(compared: dict[str, Comparison]) -> Iterator[str]:
    """Yield aligned lines for people."""
    width = max((len(name) for name in compared), default=0)
    yield f"{'figure':{width}}  {'base':>10}  {'new':>10}  {'new/base':>8}  spread"
    for name, one in compared.items():
        spread = f"{one.lowest_ratio:.3f} to {one.highest_ratio:.3f} ({one.pairs})"
        mark = "  WORSE" if one.is_worse else ""
        yield (
            f"{name:{width}}  {one.base:10.4g}  {one.new:10.4g}  {one.ratio:8.3f}  {spread}{mark}"
        )


def summary(
    sides: tuple[Side, Side], compared: dict[str, Comparison], pairs: Sequence[Pair], repeats: int
) -> dict[str, object]:
    """Everything in one object."""
    base, new = sides
    return {
        "base": base.commit,
        "new": new.commit,
        "repeats": repeats,
        "figures": {name: asdict(one) for name, one in compared.items()},
        "worse": [name for name, one in compared.items() if one.is_worse],
        "unmatched": unmatched(pairs),
        "machine": {
            "processor": processor_model(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": round(os.getloadavg()[0], 1),
        },
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="base_comparison")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--quick", action="store_true", help="the quick run's load")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(SECTIONS),
        help=f"sections, with commas between: {', '.join(SECTIONS)}",
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"pairs ({REPEATS})")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
