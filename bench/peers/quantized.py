"""Our engine and llama.cpp on the same weights: float32, 8 and 4 bits, batch 1, with a draft too.

llama.cpp quantizes the file of float32 that our checkpoint is rewritten to. In float32 both must
answer with the same tokens: then the file is the same model. Otherwise nothing is compared.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from engine.epsilon_pair import STRONG, Size, write_pair
from engine.limits import size_beyond
from peers.contest import Entry, Samples, mismatches, run_contest
from peers.figures import Figure, best_num_steps, rate_rows, ratios
from peers.floors import l3_bytes
from peers.installation import PeerUnavailable
from peers.llama_cpp import ensure_llama_cpp
from peers.llama_gguf import write_llama_gguf
from peers.loads import FULL_LENGTHS, QUICK_LENGTHS, Lengths, draw_loads
from peers.versus import Versus
from peers.worker import PeerFailed, Worker, start_worker

LLAMA_CPP = "llama.cpp"
TYPES = {"float32": "F32", "int8": "Q8_0", "int4": "Q4_0"}
"""Ours, and llama.cpp's."""


@dataclass(frozen=True, slots=True)
class QuantizedExtent:
    """How much is measured, and on what."""

    size: Size
    repeats: int
    depths: tuple[int, ...]
    lengths: Lengths


def quantized_extent(*, is_quick: bool) -> QuantizedExtent:
    """Return a model whose weights of 4 bits exceed twice the last cache."""
    size = size_beyond(2 * l3_bytes())
    if is_quick:
        return QuantizedExtent(size, 3, (7,), QUICK_LENGTHS)
    return QuantizedExtent(size, 7, (3, 5, 7), FULL_LENGTHS)


def measure_quantized(extent: QuantizedExtent) -> Versus:
    """Write the pair, start everybody, run the contest.

    Raises:
        PeerFailed: our own engine did not come up.
    """
    versus = Versus()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        target, draft = write_pair(Path(folder), extent.size, STRONG)
        workers = _start(stack, target, draft, versus)
        samples = run_contest(
            workers,
            list(_entries(workers, extent.depths)),
            lambda seed: draw_loads(extent.lengths, extent.size.vocab, seed),
            {"single": extent.repeats},
            lambda: None,
        )
    versus.unavailable |= samples.reasons
    versus.mismatches = model_mismatches(samples)
    versus.figures = dict(quantized_figures(samples))
    versus.rates = rate_rows(samples)
    versus.depths = {
        name: best.depth for name in workers if (best := best_num_steps(samples, name))
    }
    return versus


def _start(stack: ExitStack, target: Path, draft: Path, versus: Versus) -> dict[str, Worker]:
    """Start our engine and llama.cpp in each type; leave out llama.cpp where it does not run."""
    setup = {"target": str(target), "draft": str(draft), "dtype": "float32"}
    started = {
        own(ours): stack.enter_context(
            start_worker("own_worker", setup | {"quantization": _quantization(ours)})
        )
        for ours in TYPES
    }
    try:
        libraries = str(ensure_llama_cpp())
    except PeerUnavailable as reason:
        versus.unavailable[LLAMA_CPP] = str(reason)
    else:
        ggufs = {"target": _gguf(target), "draft": _gguf(draft), "libraries": libraries}
        for theirs in TYPES.values():
            worker = start_worker("llama_cpp_worker", ggufs | {"dtype": theirs})
            started[llama_cpp(theirs)] = stack.enter_context(worker)
    return dict(_loaded(started, versus))


def _loaded(started: Mapping[str, Worker], versus: Versus) -> Iterator[tuple[str, Worker]]:
    """Wait for all; yield those that came up."""
    for name, worker in started.items():
        try:
            versus.versions |= worker.versions()
        except PeerFailed as failure:
            if not name.startswith(LLAMA_CPP):
                raise
            versus.unavailable[name] = str(failure)
        else:
            yield name, worker


def own(type_name: str) -> str:
    """Name the contestant that is our engine with weights of one type."""
    return f"own {type_name}"


def llama_cpp(type_name: str) -> str:
    """Name the contestant that is llama.cpp with weights of one type."""
    return f"{LLAMA_CPP} {type_name}"


def _quantization(type_name: str) -> str:
    return "auto" if type_name == "float32" else type_name


def _gguf(checkpoint: Path) -> str:
    path = checkpoint.with_suffix(".gguf")
    write_llama_gguf(checkpoint, path, "float32")
    return str(path)


def _entries(contestants: Mapping[str, Worker], depths: tuple[int, ...]) -> Iterator[Entry]:
    for contestant in contestants:
        yield Entry(contestant, "plain", "single")
    for depth in depths:
        for contestant in contestants:
            yield Entry(contestant, "speculative", "single", depth)


def model_mismatches(samples: Samples) -> tuple[str, ...]:
    """Name where llama.cpp's tokens of float32 differ from ours: then its model is another."""
    proof = Entry(own("float32"), "plain", "single"), Entry(llama_cpp("F32"), "plain", "single")
    float32 = Samples({entry: samples.of(entry) for entry in proof})
    if not float32.of(proof[0]).keys() & float32.of(proof[1]).keys():
        return (f"{proof[1].name}: not measured",)
    return tuple(mismatches(float32, proof[0]))


def quantized_figures(samples: Samples) -> Iterator[tuple[str, Figure | list[float]]]:
    """Yield our rates to llama.cpp's by name: medians, then quartiles over the repeats.

    All are null where float32 was not measured or its tokens differ.
    """
    is_same_model = not model_mismatches(samples)
    for ours, theirs in TYPES.items():
        mine, others = own(ours), llama_cpp(theirs)
        plain = Entry(mine, "plain", "single"), Entry(others, "plain", "single")
        drafted = best_num_steps(samples, mine), best_num_steps(samples, others)
        for figure, found in (
            (f"{ours}_vs_llamacpp", ratios(samples, *plain)),
            (f"{ours}_decode_vs_llamacpp", ratios(samples, *plain, attrgetter("decode_rate"))),
            (f"{ours}_spec_vs_llamacpp", ratios(samples, *drafted)),
        ):
            yield from _median_and_quartiles(figure, found if is_same_model else [])


def _median_and_quartiles(
    figure: str, found: list[float]
) -> Iterator[tuple[str, Figure | list[float]]]:
    yield figure, round(statistics.median(found), 3) if found else None
    if len(found) > 1:
        lower, _, upper = statistics.quantiles(found, n=4, method="inclusive")
        yield f"{figure}_quartiles", [round(lower, 3), round(upper, 3)]
