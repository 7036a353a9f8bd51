"""What is measured, and in which order: cells, and the engine processes that measure them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

BATCHES = (1, 8, 64, 128)
PREFILL_BATCHES = (1, 8)
AGREEMENTS = (0.8, 0.5)
RECORDED = "recorded"
CPU_LIMIT_S = 600.0
HTTP_STREAMS = (8, 64, 128)
CPU_STREAMS = (8,)
PAIR = "pair-float32"
HALF_B = ("540m-bfloat16", "540m-float32")
"""Checkpoints of `--vllm-cpu`, each with the type that engines compute in."""
PAIR_HEAD = "eagle3"


class Engine(StrEnum):
    """Who is compared."""

    OWN = "specdecode"
    VLLM = "vllm"
    SGLANG = "sglang"
    TRANSFORMERS = "transformers"


class Mode(StrEnum):
    """How an engine drafts."""

    PLAIN = "plain"
    FIXED_1 = "fixed 1"
    FIXED_3 = "fixed 3"
    FIXED_7 = "fixed 7"
    GOODPUT = "goodput"  # ours
    BY_BATCH = "table by batch size"  # vLLM's
    ADAPTIVE = "adaptive"  # SGLang's


class Load(StrEnum):
    """What an engine answers."""

    DECODE = "decode"
    PREFILL = "prefill"
    VARYING = "varying"  # requests that come and go
    HTTP = "http"  # streams from the engine's own server


ADAPTIVE = {Engine.OWN: Mode.GOODPUT, Engine.VLLM: Mode.BY_BATCH, Engine.SGLANG: Mode.ADAPTIVE}
"""The best adaptive mode of each engine."""
PEERS = (Engine.VLLM, Engine.SGLANG)


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure: tokens per second of an engine in a mode with a load.

    `head` is the folder of the EAGLE-3 head, empty without speculation; `batch` is 0 where requests
    come and go, and the number of streams over HTTP. `model` is a checkpoint of `--vllm-cpu`, empty
    for that of the run.
    """

    engine: Engine
    mode: Mode
    load: Load
    batch: int
    head: str = ""
    model: str = ""

    @classmethod
    def read(cls, document: dict[str, Any]) -> "Cell":
        """Read it from a line of JSON."""
        return cls(
            Engine(document["engine"]),
            Mode(document["mode"]),
            Load(document["load"]),
            document["batch"],
            document["head"],
            document["model"],
        )

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        batch = f" batch {self.batch}" if self.batch else ""
        head = f" {self.head}" if self.head else ""
        model = f" {self.model}" if self.model else ""
        return f"{self.engine} {self.mode} {self.load}{batch}{head}{model}"


@dataclass(frozen=True, slots=True)
class Job:
    """Cells that one process of an engine measures, and the seconds after which it is ended."""

    engine: Engine
    cells: tuple[Cell, ...]
    limit_s: float

    @property
    def name(self) -> str:
        """Name of its log."""
        modes = dict.fromkeys(cell.mode.replace(" ", "-") for cell in self.cells)
        named = [one for one in (self.cells[0].head, self.cells[0].model) if one]
        loads = dict.fromkeys(str(cell.load) for cell in self.cells)
        return "-".join([self.engine, *modes, *named, *loads])


def head_name(agreement: float) -> str:
    """Return the folder of the head that agrees on this share of tokens."""
    return f"eagle3-{agreement:g}"


def gpu_jobs() -> list[Job]:
    """Return all jobs on a GPU, the most valuable first.

    An engine that drafts starts with one head, so each head has jobs of its own; our engine
    prepares all draft steps at once, so its fixed ones share a job.
    """
    engines = (Engine.OWN, *PEERS)
    heads = [head_name(one) for one in AGREEMENTS]
    own_fixed = (Mode.FIXED_3, Mode.FIXED_1, Mode.FIXED_7)
    jobs = [_job(one, (Mode.PLAIN,), Load.DECODE, BATCHES) for one in engines]
    jobs += [
        _job(one, (ADAPTIVE[one],), Load.DECODE, BATCHES, head) for head in heads for one in engines
    ]
    for head in heads:
        jobs.append(_job(Engine.OWN, own_fixed, Load.DECODE, BATCHES, head))
        jobs += [_job(one, (Mode.FIXED_3,), Load.DECODE, BATCHES, head) for one in PEERS]
    jobs += [_job(one, (Mode.PLAIN,), Load.PREFILL, PREFILL_BATCHES) for one in engines]
    jobs += [_job(one, (ADAPTIVE[one],), Load.VARYING, (0,), RECORDED) for one in engines]
    jobs += [_job(one, (Mode.FIXED_3,), Load.VARYING, (0,), RECORDED) for one in PEERS]
    jobs += [_job(one, (ADAPTIVE[one],), Load.HTTP, HTTP_STREAMS, RECORDED) for one in engines]
    return jobs


def cpu_jobs(batches: Sequence[int] = (1, 8)) -> list[Job]:
    """Return the jobs that a machine without a GPU runs: our engine and transformers."""
    head = head_name(AGREEMENTS[0])
    drafting = (Mode.GOODPUT, Mode.FIXED_3)
    varying = Cell(Engine.OWN, Mode.GOODPUT, Load.VARYING, 0, RECORDED)
    jobs = [
        _job(Engine.OWN, (Mode.PLAIN,), Load.DECODE, batches),
        _job(Engine.TRANSFORMERS, (Mode.PLAIN,), Load.DECODE, batches),
        _job(Engine.OWN, drafting, Load.DECODE, batches, head),
        Job(Engine.OWN, (varying,), CPU_LIMIT_S),
        _job(Engine.OWN, (Mode.PLAIN,), Load.HTTP, CPU_STREAMS),
    ]
    return [*map(_on_a_cpu, jobs)]


def vllm_cpu_jobs(batches: Sequence[int] = (1, 8)) -> list[Job]:
    """Return the jobs of our engine and vLLM on a CPU.

    The example pair with and without its head, a target of 540 million parameters in both types,
    and both servers with the tiny checkpoint.
    """
    engines, plain = (Engine.OWN, Engine.VLLM), (Mode.PLAIN,)
    jobs = [_job(one, plain, Load.DECODE, batches, model=PAIR) for one in engines]
    jobs += [_job(one, (Mode.FIXED_3,), Load.DECODE, batches, PAIR_HEAD, PAIR) for one in engines]
    jobs.append(_job(Engine.OWN, (Mode.GOODPUT,), Load.DECODE, batches, PAIR_HEAD, PAIR))
    jobs += [_job(one, plain, Load.HTTP, CPU_STREAMS) for one in engines]
    for model in HALF_B:
        jobs += [_job(one, plain, Load.DECODE, batches, model=model) for one in engines]
        jobs += [_job(one, plain, Load.PREFILL, (1,), model=model) for one in engines]
    return [*map(_on_a_cpu, jobs)]


def _on_a_cpu(job: Job) -> Job:
    return Job(job.engine, job.cells, CPU_LIMIT_S)


def cells_of(jobs: Sequence[Job]) -> Iterator[Cell]:
    """Yield the cells of jobs in their order."""
    for job in jobs:
        yield from job.cells


_LIMITS_S = {
    Engine.OWN: 120.0,
    Engine.VLLM: 150.0,
    Engine.SGLANG: 150.0,
    Engine.TRANSFORMERS: 120.0,
}


def _job(
    engine: Engine,
    modes: Sequence[Mode],
    load: Load,
    batches: Sequence[int],
    head: str = "",
    model: str = "",
) -> Job:
    cells = (Cell(engine, mode, load, batch, head, model) for mode in modes for batch in batches)
    return Job(engine, tuple(cells), _LIMITS_S[engine])
