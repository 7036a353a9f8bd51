"""`python -m bench.cpu.graphs`: graphs that pruning saves; with --gpu, against eager steps."""

import argparse
import json
import sys
from dataclasses import asdict

import torch

from bench.cpu.graphs.gpu import check
from bench.cpu.graphs.pruning import measure
from bench.cpu.graphs.tables import TABLES


def main() -> int:
    """Print one line of JSON per result; 1 if a step on graphs was wrong or a step ran eagerly."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="graphs")
    parser.add_argument("--gpu", action="store_true", help="capture and compare on a GPU")
    parser.add_argument("--device", default="cuda", help="cpu tries the comparison itself out")
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args()
    if not options.gpu:
        _print_pruning()
        return 0
    if options.device == "cpu":
        torch.set_num_threads(1)
    is_good = True
    for result in check(options.device, options.dtype):
        print(json.dumps(asdict(result) | {"is_good": result.is_good}), flush=True)
        is_good &= result.is_good
    return 0 if is_good else 1


def _print_pruning() -> None:
    for topk in (1, 4):
        savings = [measure(named, topk) for named in TABLES]
        for saving in savings:
            print(json.dumps({"topk": topk, **asdict(saving), "part": round(saving.part, 3)}))
        graphs, everything = (
            sum(one.graphs for one in savings),
            sum(one.all_graphs for one in savings),
        )
        print(
            json.dumps(
                {
                    "topk": topk,
                    "tables": len(savings),
                    "graphs": graphs,
                    "all_graphs": everything,
                    "part": round(graphs / everything, 3),
                }
            )
        )


if __name__ == "__main__":
    sys.exit(main())
