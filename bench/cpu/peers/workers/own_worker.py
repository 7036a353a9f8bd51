"""Our engine, in a process of its own like the others: plain, with a draft, batches, widths."""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from bench.cpu.peers.answering import Ask, Setup, Told, Way, answer_questions
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.forward import ForwardOutputs
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.profiling import FixedSteps, decoding

MOST_RUNNING = 64
FEW_RUNNING = 8
BUCKETS = (0, 1, 3, 5, 7)
WIDEST = BUCKETS[-1]
_CACHE_BYTES = 512 * 2**20
_WIDTH_ROUNDS = 24
_WIDTH_PROMPT_TOKENS = 32


def load(setup: Setup) -> tuple[Mapping[str, Way], dict[str, str]]:
    """Build an engine without a draft and one with it."""
    engines = Engines(setup)
    ways: dict[str, Way] = {
        "plain": engines.plain,
        "batch": engines.plain,
        "mixed": engines.plain,
        "few": engines.few,
        "in_groups": engines.in_groups,
        "speculative": engines.speculative,
        "widths": engines.widths,
    }
    return ways, {name: version(name) for name in ("specdecode-engine", "torch")}


class Engines:
    """A plain engine, and one that speculates at the requested depth."""

    def __init__(self, setup: Setup) -> None:
        self._plain = build_core(_boot(setup, {}, MOST_RUNNING))
        speculation = {
            "algorithm": "STANDALONE",
            "draft_path": setup.draft,
            "num_steps": WIDEST,
            "policy": "ema",  # so that every depth is prepared; the depth is dictated
            "table": {"1": {"candidate_steps": list(BUCKETS)}},
        }
        self._speculative = build_core(_boot(setup, speculation, 1))
        self._depth = FixedSteps(WIDEST)
        self._speculative.scheduler.drafting.policy = self._depth

    def plain(self, ask: Ask) -> Told:
        """Answer all prompts at once; report the time of decoding from the first token."""
        return _serve(self._plain, ask, MOST_RUNNING)

    def few(self, ask: Ask) -> Told:
        """Eight prompts at a time, the next where one ends."""
        return _serve(self._plain, ask, FEW_RUNNING)

    def in_groups(self, ask: Ask) -> Told:
        """Eight prompts, and when all of them have ended the next eight."""
        answers: list[list[int]] = []
        for first in range(0, len(ask.prompts), FEW_RUNNING):
            group = slice(first, first + FEW_RUNNING)
            part = Ask(ask.way, ask.prompts[group], ask.tokens[group])
            answers += _serve(self._plain, part, FEW_RUNNING).tokens
            ask.cpu_s += part.cpu_s
            ask.wall_s += part.wall_s
        return Told(answers)

    def speculative(self, ask: Ask) -> Told:
        """One prompt, with the draft."""
        self._depth.num_steps = ask.depth
        return _serve(self._speculative, ask, 1)

    def widths(self, ask: Ask) -> Told:
        """Processor time of the target's forward over 1 row and over 8, interleaved."""
        times: dict[int, list[float]] = {0: [], WIDEST: []}
        with (
            ask.timed(),
            decoding(self._speculative, 1, _WIDTH_PROMPT_TOKENS),
            _timed_verify(self._speculative) as seconds,
        ):
            for number in range(2 * _WIDTH_ROUNDS):
                self._depth.num_steps = (0, WIDEST)[number % 2]
                self._speculative.step()
                times[self._depth.num_steps].append(seconds[-1])
        one, eight = (times[depth][2:] for depth in (0, WIDEST))
        return Told(
            figures={
                "one_row_ms": statistics.median(one) * 1e3,
                "eight_rows_ms": statistics.median(eight) * 1e3,
                "one_row_least_ms": min(one) * 1e3,
                "eight_rows_least_ms": min(eight) * 1e3,
            }
        )


def _boot(setup: Setup, speculation: dict[str, object], most_running: int) -> EngineBoot:
    document = {
        "model": {
            "path": setup.target,
            "dtype": setup.dtype,
            "quantization": setup.quantization,
        },
        "speculation": speculation,
        "scheduling": {"max_running_requests": most_running, "chunked_prefill_tokens": 4096},
        "memory": {"prefix_cache": False, "kv_cache_bytes": _CACHE_BYTES},
        "device": "cpu",
        "threads": 1,
    }
    return EngineBoot.model_validate(document)


def _serve(core: EngineCore, ask: Ask, most_running: int) -> Told:
    """Answer all, `most_running` at a time.

    Returns:
        The answers; `decode_s` and `decode_tokens` leave out the steps before all had begun.
    """
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(ask.prompts))}
    waiting = deque(answers)
    running = decode_s = decode_tokens = 0.0
    with ask.timed():
        while waiting or core.has_work():
            while waiting and running < most_running:
                _submit(core, ask, waiting.popleft())
                running += 1
            is_decoding = not waiting and all(answers.values())
            began_s = time.process_time()
            outputs = core.step()
            took_s = time.process_time() - began_s
            for output in outputs:
                answers[output.request_id] += output.token_ids
                running -= output.finish_reason is not None
            if is_decoding:
                decode_s += took_s
                decode_tokens += sum(len(output.token_ids) for output in outputs)
    return Told(list(answers.values()), {"decode_s": decode_s, "decode_tokens": decode_tokens})


def _submit(core: EngineCore, ask: Ask, name: str) -> None:
    number = int(name)
    sampling = SamplingParams(0, ask.tokens[number], 0.0, ignore_eos=True)
    core.submit(Request(name, tuple(ask.prompts[number]), sampling))


@contextmanager
def _timed_verify(core: EngineCore) -> Iterator[list[float]]:
    """Note the processor time of every verify forward."""
    graphs, seconds = core.context.graphs, list[float]()
    run = graphs.run

    def timed(kind: ForwardKind, inputs: DecodeInputs) -> ForwardOutputs:
        began_s = time.process_time()
        outputs = run(kind, inputs)
        if kind is ForwardKind.VERIFY:
            seconds.append(time.process_time() - began_s)
        return outputs

    vars(graphs)["run"] = timed
    try:
        yield seconds
    finally:
        del vars(graphs)["run"]


if __name__ == "__main__":
    answer_questions(load)
