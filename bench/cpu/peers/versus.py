"""Our engine and its peers on the ε-pair, in one number type."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.cpu.peers.contest import (
    OPENVINO,
    OWN,
    TRANSFORMERS,
    Entry,
    Samples,
    mismatches,
    run_contest,
)
from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from bench.cpu.peers.figures import Figure, Model, best_num_steps, contest_figures, rate_rows
from bench.cpu.peers.floors import Floors, Limits
from bench.cpu.peers.llama_gguf import write_gguf_folder
from bench.cpu.peers.loads import FULL_LENGTHS, QUICK_LENGTHS, Lengths, draw_loads
from bench.cpu.peers.worker import PeerFailed, Worker, start_worker
from checks.harness.installation import LOCKS, PeerUnavailable, ensure_environment

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    size: Size
    lengths: Lengths
    depths: tuple[int, ...]
    repeats: Mapping[str, int]  # by load


QUICK = Extent(SIZE_82M, QUICK_LENGTHS, (7,), {"single": 2, "batch": 2, "mixed": 1, "even": 1})
FULL = Extent(
    SIZE_82M, FULL_LENGTHS, (1, 3, 5, 7), {"single": 7, "batch": 5, "mixed": 3, "even": 3}
)


@dataclass(slots=True)
class Versus:
    """What came of it."""

    figures: Mapping[str, Figure | list[float]] = field(default_factory=dict)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)  # best speculative one by contestant
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)  # why, by contestant or entry
    mismatches: tuple[str, ...] = ()
    floors: tuple[Floors, ...] = ()


def measure_versus(extent: Extent, dtype: str) -> Versus:
    """Write the pair, start everybody, run the contest.

    Raises:
        PeerFailed: our own engine did not come up; under CI also where transformers did not.
    """
    versus = Versus()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        target, draft = write_pair(Path(folder), extent.size, STRONG)
        workers = dict(_start(stack, target, draft, dtype, versus))
        limits, floors = Limits(), list[Floors]()
        widths: list[Mapping[str, float]] = []

        def beside() -> None:
            floors.append(limits.measure())
            widths.append(workers[OWN].ask("widths").figures)

        samples = run_contest(
            workers,
            list(_entries(extent)),
            lambda seed: draw_loads(extent.lengths, extent.size.vocab, seed),
            extent.repeats,
            beside,
        )
    model = Model(extent.size.streamed * BYTES[dtype])
    versus.figures = contest_figures(samples, widths, floors, model)
    versus.rates = rate_rows(samples)
    versus.depths = best_depths(samples, (OWN, TRANSFORMERS, OPENVINO))
    versus.unavailable |= samples.reasons
    versus.floors = tuple(floors)
    if dtype == "float32":
        versus.mismatches = tuple(_all_mismatches(samples))
    return versus


def _entries(extent: Extent) -> Iterator[Entry]:
    for contestant in (OWN, TRANSFORMERS, OPENVINO):
        yield Entry(contestant, "plain", "single")
    for depth in extent.depths:
        for contestant in (OWN, TRANSFORMERS, OPENVINO):
            yield Entry(contestant, "speculative", "single", depth)
    for load in ("batch", "mixed"):
        for contestant in (OWN, TRANSFORMERS, OPENVINO):
            yield Entry(contestant, load, load)
    yield Entry(OWN, "few", "mixed")
    yield Entry(OWN, "in_groups", "even")


def _start(
    stack: ExitStack, target: Path, draft: Path, dtype: str, versus: Versus
) -> Iterator[tuple[str, Worker]]:
    """Start all of them at once, then wait; one that does not come up is left out."""
    setup = {"target": str(target), "draft": str(draft), "dtype": dtype}
    started = {
        OWN: stack.enter_context(start_worker("own_worker", setup)),
        TRANSFORMERS: stack.enter_context(start_worker("transformers_worker", setup)),
    }
    try:
        python = ensure_environment(LOCKS / "openvino.txt")
        ggufs = {
            "target": write_gguf_folder(target, OPENVINO),
            "draft": write_gguf_folder(draft, OPENVINO),
            "dtype": dtype,
        }
        started[OPENVINO] = stack.enter_context(start_worker("openvino_worker", ggufs, python))
    except PeerUnavailable as reason:
        versus.unavailable[OPENVINO] = str(reason)
    needed = (OWN, TRANSFORMERS) if os.environ.get("CI") == "true" else (OWN,)
    return loaded(started, versus, lambda name: name in needed)


def loaded(
    started: Mapping[str, Worker], versus: Versus, is_needed: Callable[[str], bool]
) -> Iterator[tuple[str, Worker]]:
    """Wait for all; yield those that came up.

    Raises:
        PeerFailed: one that is needed did not.
    """
    for name, worker in started.items():
        try:
            versus.versions |= worker.versions()
        except PeerFailed as failure:
            if is_needed(name):
                raise
            versus.unavailable[name] = str(failure)
        else:
            yield name, worker


def best_depths(samples: Samples, contestants: Iterable[str]) -> dict[str, int]:
    """Return the best speculative depth of each contestant that has one."""
    return {name: best.depth for name in contestants if (best := best_num_steps(samples, name))}


def _all_mismatches(samples: Samples) -> Iterator[str]:
    for way, load in (("plain", "single"), ("batch", "batch"), ("mixed", "mixed")):
        yield from mismatches(samples, Entry(OWN, way, load))
