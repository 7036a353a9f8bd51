"""Measures the cells of one engine, with repetitions, and checks every token that it emits."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.gpu.peers.cells import Cell, Load, Mode
from bench.gpu.peers.checkpoint.cycle import Cycle, count_wrong
from bench.gpu.peers.loads import Lengths, Loads, ScheduledRequest, draw_prompts, draw_schedule
from bench.gpu.peers.results.figures import Figure

Prompts = Sequence[Sequence[int]]
FEW = 8
REPETITIONS_OF_FEW = 3
REPETITIONS = 2
"""Of batches above FEW."""
VARYING_SEEDS = (1, 2)


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
        clock: seconds, of the wall on a GPU and of this process on a CPU.
    """

    def __init__(
        self, engine: ServingEngine, cycle: Cycle, loads: Loads, clock: Callable[[], float]
    ) -> None:
        self._engine, self._cycle, self._loads, self._clock = engine, cycle, loads, clock
        self._successors = cycle.successors()

    def measure(self, cell: Cell) -> Figure:
        """Measure one cell.

        Raises:
            WrongLength: an answer is shorter or longer than requested.
            NoDifference: a long answer took no longer than a short one.
        """
        self._engine.use(cell.mode)
        rates = {Load.DECODE: self._decode, Load.PREFILL: self._prefill, Load.VARYING: self._vary}
        checked = Checked()
        found = rates[cell.load](cell, checked)
        return Figure.measured(cell, found, checked.wrong, checked.tokens, self._engine.facts())

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
        rates = []
        self._serve(0, checked)
        self._engine.facts()
        for seed in VARYING_SEEDS:
            before = checked.tokens
            seconds = self._serve(seed, checked)
            rates.append((checked.tokens - before) / seconds)
        return rates

    def _serve(self, seed: int, checked: Checked) -> float:
        requests = draw_schedule(self._cycle.order, self._loads, seed)
        began_s = self._clock()
        answers = self._engine.serve(requests)
        took_s = self._clock() - began_s
        for request, answer in zip(requests, answers, strict=True):
            self._check(request.prompt, answer, request.tokens, checked)
        return took_s

    def _answer(self, cell: Cell, length: int, tokens: int, seed: str, checked: Checked) -> float:
        prompts = draw_prompts(self._cycle.order, cell.batch, length, seed)
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
        checked.wrong += count_wrong(self._successors, prompt, answer)
        checked.tokens += tokens

    def _repetitions(self, cell: Cell) -> int:
        return REPETITIONS_OF_FEW if cell.batch <= FEW else REPETITIONS


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


def clock_of(is_gpu: bool) -> Callable[[], float]:
    """Return the clock of a run; on a CPU, other work on the machine must not count."""
    return time.perf_counter if is_gpu else time.process_time
