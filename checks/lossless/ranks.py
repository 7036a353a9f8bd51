"""Runs the comparison on every rank of a divided target: each draws and computes the same cases."""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed

from checks.lossless.comparison import compare_all
from specdecode_engine.ranks import LEADER
from specdecode_engine.serve.engine.core import make_links
from specdecode_engine.startup.device import join_ranks


def run_on_ranks(size: int, options: argparse.Namespace) -> int:
    """Compare in a process for each rank; the leader alone prints. Return the worst status."""
    context = multiprocessing.get_context("spawn")
    links = make_links(size)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        store = Path(folder) / "store"
        processes = [
            context.Process(target=_run, args=(rank, size, str(store), links[rank], options))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return max(abs(process.exitcode or 0) for process in processes)


def _run(
    rank: int, size: int, store: str, links: Sequence[Connection], options: argparse.Namespace
) -> None:
    torch.set_num_threads(1)
    if rank != LEADER:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    status = compare_all(options, join_ranks(rank, size, store, links, torch.device("cpu")))
    distributed.destroy_process_group()
    sys.exit(status)
