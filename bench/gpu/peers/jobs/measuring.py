"""Measures the cells of one engine, with repetitions, and checks every token that it emits."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.gpu.peers.answers import KnownAnswers
from bench.gpu.peers.cells import Cell, Load, Mode
from bench.gpu.peers.loads import Lengths, Loads, ScheduledRequest, Stage, http_stages
from bench.gpu.peers.results.figures import FIRST_TOKEN_MS, QUANTILES, Figure

Prompts = Sequence[Sequence[int]]
FEW = 8
REPETITIONS_OF_FEW = 3
REPETITIONS = 2
"""Of batches above FEW."""
VARYING_SEEDS = (1, 2)
HTTP_SEEDS = (1, 2, 3)
FIRST_TOKENS_S = "first_tokens_s"
"""Among the facts of an engine over HTTP: the time to first token of each request."""


class ServingEngine(Protocol):
    """An engine that has started, in its own process."""

    def use(self, mode: Mode) -> None:
        """Draft from now on as this mode does."""

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Answer all prompts greedily at once, so many tokens each, the end token ignored."""

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Answer requests as they come: each starts once at most its `running` run with it."""

    def facts(self) -> dict[str, Any]:
        """Return what a cell's figure is to contain, counted since the last call."""


class NoDifference(Exception):
    """A long answer took no longer than a short one, so there is no rate."""


class WrongLength(Exception):
    """An engine answered with another number of tokens than was requested."""


@dataclass(slots=True)
class Checked:
    """Tokens that were answered for a cell, those before its first repetition too."""

    wrong: int = 0
    tokens: int = 0


class CellRunner:
    """Measures cells on one engine.

    Args:
        answers: prompts, and what is right.
        clock: seconds, of the wall on a GPU and over HTTP, else of this process.
    """

    def __init__(
        self, engine: ServingEngine, answers: KnownAnswers, loads: Loads, clock: Callable[[], float]
    ) -> None:
        self._engine, self._answers, self._loads, self._clock = engine, answers, loads, clock

    def measure(self, cell: Cell) -> Figure:
        """Measure one cell.

        Raises:
            WrongLength: an answer is shorter or longer than requested.
            NoDifference: a long answer took no longer than a short one.
        """
        self._engine.use(cell.mode)
        checked = Checked()
        if cell.load is Load.HTTP:
            rates, facts = self._http(cell, checked)
        else:
            measured = {
                Load.DECODE: self._decode,
                Load.PREFILL: self._prefill,
                Load.VARYING: self._vary,
            }
            rates = measured[cell.load](cell, checked)
            facts = self._engine.facts()
        return Figure.measured(cell, rates, checked.wrong, checked.tokens, facts)

    def _decode(self, cell: Cell, checked: Checked) -> list[float]:
        """Return rates of the difference of two answers' lengths, so without the prompt."""
        lengths = self._loads.decode
        # compiles what is compiled at first use, and lets adaptive modes learn
        self._answer(cell, lengths.prompt, lengths.long, "first", checked)
        self._engine.facts()
        rates = []
        for number in range(self._repetitions(cell)):
            short_s = self._answer(cell, lengths.prompt, lengths.short, f"short {number}", checked)
            long_s = self._answer(cell, lengths.prompt, lengths.long, f"long {number}", checked)
            rates.append(cell.batch * rate_between(lengths, short_s, long_s))
        return rates

    def _prefill(self, cell: Cell, checked: Checked) -> list[float]:
        length = self._loads.prefill_prompt
        self._answer(cell, length, 1, "first", checked)
        self._engine.facts()
        return [
            cell.batch * length / self._answer(cell, length, 1, str(number), checked)
            for number in range(self._repetitions(cell))
        ]

    def _vary(self, cell: Cell, checked: Checked) -> list[float]:
        self._serve(self._loads.varying, 0, checked)
        self._engine.facts()
        return [self._serve(self._loads.varying, seed, checked) for seed in VARYING_SEEDS]

    def _http(self, cell: Cell, checked: Checked) -> tuple[list[float], dict[str, Any]]:
        """Return rates, and by quantile the time to first token of each repetition in ms."""
        stages = http_stages(cell.batch)
        self._serve(stages, 0, checked)
        self._engine.facts()
        rates, first_ms = [], {name: list[float]() for name in QUANTILES}
        for seed in HTTP_SEEDS:
            rates.append(self._serve(stages, seed, checked))
            times_s = self._engine.facts()[FIRST_TOKENS_S]
            for name, share in QUANTILES.items():
                first_ms[name].append(round(quantile(times_s, share) * 1e3, 3))
        return rates, {"clock": "seconds", FIRST_TOKEN_MS: first_ms}

    def _serve(self, stages: Sequence[Stage], seed: int, checked: Checked) -> float:
        """Return the tokens per second of a schedule."""
        requests, before = self._answers.schedule(self._loads.decode, stages, seed), checked.tokens
        began_s = self._clock()
        answers = self._engine.serve(requests)
        took_s = self._clock() - began_s
        for request, answer in zip(requests, answers, strict=True):
            self._check(request.prompt, answer, request.tokens, checked)
        return (checked.tokens - before) / took_s

    def _answer(self, cell: Cell, length: int, tokens: int, seed: str, checked: Checked) -> float:
        prompts = self._answers.prompts(cell.batch, length, seed)
        began_s = self._clock()
        answers = self._engine.generate(prompts, tokens)
        took_s = self._clock() - began_s
        for prompt, answer in zip(prompts, answers, strict=True):
            self._check(prompt, answer, tokens, checked)
        return took_s

    def _check(
        self, prompt: Sequence[int], answer: Sequence[int], tokens: int, checked: Checked
    ) -> None:
        if len(answer) != tokens:
            raise WrongLength(f"{len(answer)} tokens were answered, {tokens} requested")
        checked.wrong += self._answers.count_wrong(prompt, answer)
        checked.tokens += tokens

    def _repetitions(self, cell: Cell) -> int:
        return REPETITIONS_OF_FEW if cell.batch <= FEW else REPETITIONS


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def rate_between(lengths: Lengths, short_s: float, long_s: float) -> float:
    """Return the tokens per second of one request, from the times of both answers.

    Raises:
        NoDifference: the long answer took no longer.
    """
    if long_s <= short_s:
        raise NoDifference(
            f"{lengths.long} tokens took {long_s:.4f} s and {lengths.short} tokens {short_s:.4f} s"
        )
    return (lengths.long - lengths.short) / (long_s - short_s)


def clock_of(is_gpu: bool, load: Load) -> Callable[[], float]:
    """Return the clock of a run; on a CPU, other work on the machine must not count.

    Over HTTP an engine is in another process, so its time is that of the wall.
    """
    return time.perf_counter if is_gpu or load is Load.HTTP else time.process_time
