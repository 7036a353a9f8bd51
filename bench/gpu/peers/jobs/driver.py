"""Runs the jobs of engines one after another, each alone with the device and within its limit."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from bench.gpu.peers.cells import Cell, Job
from bench.gpu.peers.jobs.engine_process import JobProcess, RunPlace
from bench.gpu.peers.jobs.free_memory import wait_for_memory
from bench.gpu.peers.jobs.log_archive import keep_log
from bench.gpu.peers.results.figures import Figure, FiguresFile

MIN_JOB_S = 30.0
"""Left over at the end: no engine starts and measures a cell within less."""


def run_jobs(
    jobs: Sequence[Job], place: RunPlace, figures: FiguresFile, ends_s: float
) -> Iterator[str]:
    """Run what has no figure yet until `ends_s`; yield a line of text per figure and job.

    What a run before this one could not run comes last. On a GPU, the next engine imports while one
    measures. A job that the end of the run cuts off leaves cells without a figure, for a later run.
    """
    waiting = [left for job in jobs if (left := _left(job, figures)).cells]
    waiting.sort(key=lambda job: all(cell in figures.figures for cell in job.cells))
    following: JobProcess | None = None
    with ExitStack() as started:

        def start(job: Job) -> JobProcess:
            return started.enter_context(closing(JobProcess(job, place)))

        for number, job in enumerate(waiting):
            if (left_s := ends_s - time.monotonic()) < MIN_JOB_S:
                yield f"no time for {', '.join(one.name for one in waiting[number:])}"
                return
            process, following = following or start(job), None
            if place.is_gpu and number + 1 < len(waiting):
                following = start(waiting[number + 1])
            limit_s = min(job.limit_s, left_s)
            is_last = limit_s == left_s
            yield from _run(process, place, figures, limit_s, is_last)


def _left(job: Job, figures: FiguresFile) -> Job:
    cells = tuple(cell for cell in job.cells if not figures.is_measured(cell))
    return Job(job.engine, cells, job.limit_s)


def _run(
    process: "JobProcess", place: RunPlace, figures: FiguresFile, limit_s: float, is_last: bool
) -> Iterator[str]:
    """Give a process the device; cells without a figure afterwards are not run.

    Args:
        is_last: the limit is the end of the run, so cells that it cuts off get no figure.
    """
    job, began_s = process.job, time.monotonic()
    if place.is_gpu:
        wait_for_memory()
    found = set[Cell]()
    with closing(process):
        for figure in process.figures(began_s + limit_s):
            figures.add(figure)
            found.add(figure.cell)
            yield text_of(figure)
    keep_log(process.log, place.archive)
    if not (process.timed_out and is_last):
        for cell in job.cells:
            if cell not in found:
                figures.add(Figure.not_run(cell, process.reason(limit_s)))
                yield text_of(figures.figures[cell])
    yield f"{job.name}: {time.monotonic() - began_s:.1f} s"


def text_of(figure: Figure) -> str:
    """Return a figure as a line of text."""
    if figure.median is None:
        return f"{figure.cell}: not run: {figure.reason}"
    spread = f"{figure.min:g} to {figure.max:g}"
    wrong = f", {figure.wrong} tokens wrong" if figure.wrong else ""
    return f"{figure.cell}: {figure.median:g} tokens/s ({spread}){wrong}"
