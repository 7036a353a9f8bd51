"""`python -m bench.cpu.engine [--quick]`: tables of everything and, last, one line of JSON."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.cpu.engine.adapters import measure_adapters
from bench.cpu.engine.adaptive import FULL as FULL_ADAPTIVE
from bench.cpu.engine.adaptive import QUICK as QUICK_ADAPTIVE
from bench.cpu.engine.adaptive import measure_adaptive
from bench.cpu.engine.algorithms import measure_algorithms
from bench.cpu.engine.crossing import measure_crossing
from bench.cpu.engine.host_step import measure_host_steps
from bench.cpu.engine.implementations import FULL as FULL_TURNS
from bench.cpu.engine.implementations import QUICK as QUICK_TURNS
from bench.cpu.engine.implementations import measure_implementations
from bench.cpu.engine.joining import measure_joining
from bench.cpu.engine.latency import measure_latency
from bench.cpu.engine.limits import extent, measure_limits
from bench.cpu.engine.mixed import FULL as FULL_MIXED
from bench.cpu.engine.mixed import measure_mixed
from bench.cpu.engine.quantized import measure_quantized, quantized_extent
from bench.cpu.peers.idle import MachineBusy, wait_until_idle
from bench.cpu.peers.report import RESULTS, Report, write_results
from bench.cpu.peers.versus import FULL, QUICK, measure_versus
from bench.cpu.radix.timing import measure as measure_radix

HEADLINE, OTHER = "float32", "bfloat16"
PAGE_SIZE = 16
ADAPTED_STEPS = 8
SECTIONS = (
    "host", "limits", "joining", "latency", "versus", "adaptive", "algorithms", "crossing",
    "mixed", "implementations", "quantized", "adapters",
)  # fmt: skip
QUICK_SECTIONS = ("host", "limits", "versus", "adaptive", "quantized")


def main() -> int:
    """Measure, print the tables, write the results of a full run; 1 on a busy machine."""
    options = _options()
    torch.set_num_threads(1)
    try:
        report = Report(load=wait_until_idle())
    except MachineBusy as error:
        print(error, file=sys.stderr)
        return 1
    began_s = time.monotonic()
    folder = options.results or (None if options.quick else RESULTS)
    for section in options.only:
        for part in _measure(section, options, report):
            report.figures |= part
            report.add_machine(time.monotonic() - began_s)
            if folder is not None:  # after every part: what comes later may fail
                write_results(report, folder)
    print(report.text())
    print(json.dumps(report.summary(), ensure_ascii=False))
    return 0


def _measure(
    section: str, options: argparse.Namespace, report: Report
) -> Iterator[dict[str, object]]:
    """Yield the figures of a section by name, part by part."""
    quick: bool = options.quick
    if section == "versus":
        for dtype in options.dtypes:
            versus = measure_versus(QUICK if quick else FULL, dtype)
            report.contests[dtype] = versus
            yield dict(versus.figures) if dtype == HEADLINE else {dtype: versus.figures}
    elif section == "host":
        prefix = measure_radix(PAGE_SIZE, 0, 0, repeats=100)
        rounds = measure_host_steps(100 if quick else 400)
        yield {"prefix_match_us": prefix["match_us"], "scheduler_us": rounds}
    elif section == "limits":
        yield measure_limits(extent(is_quick=quick))
    elif section == "joining":
        yield {"joining": measure_joining(3 if quick else 7)}
    elif section == "latency":
        yield {"latency": measure_latency(2 if quick else 5)}
    elif section == "adaptive":
        yield {"adaptive": measure_adaptive(QUICK_ADAPTIVE if quick else FULL_ADAPTIVE)}
    elif section == "implementations":
        turns = QUICK_TURNS if quick else FULL_TURNS
        yield {"implementations": measure_implementations(turns)}
    elif section == "quantized":
        report.contests[section] = measure_quantized(quantized_extent(is_quick=quick))
        yield dict(report.contests[section].figures)
    elif section == "adapters":
        size, repeats = extent(is_quick=quick).size, 3 if quick else 9
        yield {"adapters": measure_adapters(size, repeats, ADAPTED_STEPS)}
    elif section == "mixed":
        yield {"mixed": measure_mixed(FULL_MIXED)}
    elif section == "algorithms":
        yield {"algorithms": measure_algorithms()}
    else:
        yield {"crossing": measure_crossing(FULL_ADAPTIVE)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="engine")
    parser.add_argument("--quick", action="store_true", help="float32 only, less of everything")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help=f"sections, with commas between: {', '.join(SECTIONS)}",
    )
    parser.add_argument(
        "--dtypes",
        type=lambda text: text.split(","),
        help=f"number types, with commas between: {HEADLINE}, {OTHER}",
    )
    parser.add_argument("--results", type=Path, help="folder for JSON, Markdown and plot")
    options = parser.parse_args()
    if options.only is None:
        options.only = QUICK_SECTIONS if options.quick else SECTIONS
    if options.dtypes is None:
        options.dtypes = (HEADLINE,) if options.quick else (HEADLINE, OTHER)
    if not set(options.dtypes) <= {HEADLINE, OTHER}:
        parser.error(f"--dtypes {','.join(options.dtypes)}: use {HEADLINE}, {OTHER} or both")
    unknown = set(options.only) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
