"""Our engine, llama.cpp and OpenVINO on the same weights of float32, 8 and 4 bits, batch 1.

The peers quantize the files that our checkpoint is rewritten to. In float32 a peer must answer with
our tokens (OpenVINO: begin with ours): then its file is the same model. Otherwise nothing is
compared with it.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from bench.cpu.engine.limits import size_beyond
from bench.cpu.peers.contest import OPENVINO, OWN, Entry, Samples, mismatches, run_contest
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from bench.cpu.peers.figures import Figure, best_num_steps, rate_rows, ratios
from bench.cpu.peers.floors import l3_bytes
from bench.cpu.peers.llama_cpp import ensure_llama_cpp
from bench.cpu.peers.llama_gguf import write_gguf_folder, write_llama_gguf
from bench.cpu.peers.loads import FULL_LENGTHS, QUICK_LENGTHS, Lengths, draw_loads
from bench.cpu.peers.versus import Versus, best_depths, loaded
from bench.cpu.peers.worker import Answer, Worker, start_worker
from checks.harness.installation import LOCKS, PeerUnavailable, ensure_environment

LLAMA_CPP = "llama.cpp"
TYPES = ("float32", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Rival:
    """A peer with weights of one type, and our type that it is compared with.

    `key` is the end of its figures' names.
    """

    peer: str
    theirs: str
    ours: str
    key: str
    activation_group: str = ""

    @property
    def name(self) -> str:
        """The contestant."""
        return f"{self.peer} {self.theirs}"


PROOF_TOKENS = {LLAMA_CPP: None, OPENVINO: 1}
"""How many tokens of each float32 answer must be ours; None: all.

OpenVINO stores rotary frequencies as float16, so that later logits differ by up to 0.002.
"""
RIVALS = (
    Rival(LLAMA_CPP, "F32", "float32", "llamacpp"),
    Rival(LLAMA_CPP, "Q8_0", "int8", "llamacpp"),
    Rival(LLAMA_CPP, "Q4_0", "int4", "llamacpp"),
    Rival(OPENVINO, "float32", "float32", "openvino"),
    Rival(OPENVINO, "int8", "int8", "openvino"),
    Rival(OPENVINO, "int8 groups of 128", "int8", "openvino_groups_of_128", "128"),
    Rival(OPENVINO, "int8 weight-only", "int8", "openvino_weight_only", "0"),
)


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
    versus.mismatches = model_mismatches(samples, LLAMA_CPP) + model_mismatches(samples, OPENVINO)
    versus.figures = dict(quantized_figures(samples))
    versus.rates = rate_rows(samples)
    versus.depths = best_depths(samples, workers)
    return versus


def _start(stack: ExitStack, target: Path, draft: Path, versus: Versus) -> dict[str, Worker]:
    """Start our engine and the peers in each type; leave out a peer that cannot be installed."""
    setup = {"target": str(target), "draft": str(draft), "dtype": "float32"}
    started = {
        own(ours): stack.enter_context(
            start_worker("own_worker", setup | {"quantization": _quantization(ours)})
        )
        for ours in TYPES
    }
    for peer, prepare in ((LLAMA_CPP, _llama_cpp), (OPENVINO, _openvino)):
        try:
            start = prepare(target, draft)
        except PeerUnavailable as reason:
            versus.unavailable[peer] = str(reason)
            continue
        for rival in RIVALS:
            if rival.peer == peer:
                started[rival.name] = stack.enter_context(start(rival))
    return dict(loaded(started, versus, lambda name: name.startswith(OWN)))


def _llama_cpp(target: Path, draft: Path) -> Callable[[Rival], Worker]:
    libraries = str(ensure_llama_cpp())
    ggufs = {"target": _gguf(target), "draft": _gguf(draft), "libraries": libraries}
    return lambda rival: start_worker("llama_cpp_worker", ggufs | {"dtype": rival.theirs})


def _openvino(target: Path, draft: Path) -> Callable[[Rival], Worker]:
    python = ensure_environment(LOCKS / "openvino.txt")

    def start(rival: Rival) -> Worker:
        setup = {
            "target": write_gguf_folder(target, rival.name),
            "draft": write_gguf_folder(draft, rival.name),
            "dtype": "float32",
            "quantization": _quantization(rival.ours),
            "activation_group": rival.activation_group,
        }
        return start_worker("openvino_worker", setup, python)

    return start


def own(type_name: str) -> str:
    """Name the contestant that is our engine with weights of one type."""
    return f"{OWN} {type_name}"


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


def model_mismatches(samples: Samples, peer: str) -> tuple[str, ...]:
    """Name where a peer's tokens of float32 differ from ours: then its model is another."""
    theirs = next(one.name for one in RIVALS if (one.peer, one.ours) == (peer, "float32"))
    proof = Entry(own("float32"), "plain", "single"), Entry(theirs, "plain", "single")
    count = PROOF_TOKENS[peer]
    float32 = Samples({entry: _beginnings(samples.of(entry), count) for entry in proof})
    if not float32.of(proof[0]).keys() & float32.of(proof[1]).keys():
        return (f"{proof[1].name}: not measured",)
    return tuple(mismatches(float32, proof[0]))


def _beginnings(answers: Mapping[int, Answer], count: int | None) -> dict[int, Answer]:
    return {
        repeat: replace(answer, tokens=[tokens[:count] for tokens in answer.tokens])
        for repeat, answer in answers.items()
    }


def quantized_figures(samples: Samples) -> Iterator[tuple[str, Figure | list[float]]]:
    """Yield our rates to the peers' by name: medians, then quartiles over the repeats.

    A peer's are null where its float32 was not measured or its tokens differ.
    """
    for rival in RIVALS:
        is_same_model = not model_mismatches(samples, rival.peer)
        for figure, found in _ratios_to(rival, samples).items():
            yield from _median_and_quartiles(figure, found if is_same_model else [])


def _ratios_to(rival: Rival, samples: Samples) -> dict[str, list[float]]:
    mine = own(rival.ours)
    plain = Entry(mine, "plain", "single"), Entry(rival.name, "plain", "single")
    drafted = best_num_steps(samples, mine), best_num_steps(samples, rival.name)
    found = {
        f"{rival.ours}_vs_{rival.key}": ratios(samples, *plain),
        f"{rival.ours}_spec_vs_{rival.key}": ratios(samples, *drafted),
    }
    if rival.peer == LLAMA_CPP:  # OpenVINO does not report the time of decoding alone
        decoding = ratios(samples, *plain, attrgetter("decode_rate"))
        found[f"{rival.ours}_decode_vs_{rival.key}"] = decoding
    return found


def _median_and_quartiles(
    figure: str, found: list[float]
) -> Iterator[tuple[str, Figure | list[float]]]:
    yield figure, round(statistics.median(found), 3) if found else None
    if len(found) > 1:
        lower, _, upper = statistics.quantiles(found, n=4, method="inclusive")
        yield f"{figure}_quartiles", [round(lower, 3), round(upper, 3)]
