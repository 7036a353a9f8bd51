"""A prompt that joins running streams: its time to first token, and how long it delays them.

Two engines take turns: one bounds what chunks of prompts add to a step, the other one computes
whole chunks. CPU times per thread; a delay counts in decode steps of the streams alone.
"""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm

from bench.cpu.engine.limits import cpu_seconds
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

STREAMS = 16
PROMPT_TOKENS = 2048
CHUNK_TOKENS = 512
SIZE = Size(12, 512, heads=8, kv_heads=2, inner=1408, context=4096)
DELAYS = {"bounded": 1.5, "whole": 0.0}
ALONE_STEPS = 20
KNOWN_PROMPTS = 1
"""Prompts that join before measuring, so that the cost of chunks is known."""


@dataclass(slots=True)
class Joined:
    """What was measured of one engine."""

    first_token_s: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)  # of all steps with a chunk, in steps

    def figures(self) -> dict[str, object]:
        """Return medians, and the 90th percentile of the delay."""
        deciles = statistics.quantiles(self.delays, n=10)
        return {
            "first_token_ms": round(1000 * statistics.median(self.first_token_s), 1),
            "delay_steps": round(statistics.median(self.delays), 2),
            "delay_steps_p90": round(deciles[-1], 2),
            "chunks": len(self.delays) // len(self.first_token_s),
        }


def measure_joining(repeats: int) -> dict[str, object]:
    """Return the figures of both engines."""
    with tempfile.TemporaryDirectory() as name:
        target, _ = write_pair(Path(name), SIZE, STRONG)
        cores = {name: _build(target, steps) for name, steps in DELAYS.items()}
        found = {name: Joined() for name in DELAYS}
        for repeat in tqdm(range(KNOWN_PROMPTS + repeats), desc="joining"):
            for name, core in cores.items():
                _join(core, found[name] if repeat >= KNOWN_PROMPTS else Joined())
    return {name: joined.figures() for name, joined in found.items()}


def _build(target: Path, delay_steps: float) -> EngineCore:
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "scheduling": {
            "max_running_requests": STREAMS + 1,
            "chunked_prefill_tokens": CHUNK_TOKENS,
            "prefill_delay_steps": delay_steps,
        },
        "memory": {"prefix_cache": False, "kv_cache_bytes": 2**30},
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }
    return build_core(EngineBoot.model_validate(document))


def _join(core: EngineCore, joined: Joined) -> None:
    """Let one prompt join the streams, until its first token."""
    for number in range(STREAMS):
        core.submit(_request(f"stream {number}", 32, CHUNK_TOKENS))
    begun = set[str]()
    while len(begun) < STREAMS:
        begun |= {output.request_id for output in core.step()}
    threads = torch.get_num_threads()
    alone_s = statistics.median(cpu_seconds(core.step, threads) for _ in range(ALONE_STEPS))
    core.submit(_request("joining", PROMPT_TOKENS, 2))
    took_s = list(_until_first_token(core))
    joined.first_token_s.append(sum(took_s))
    joined.delays += [(seconds - alone_s) / alone_s for seconds in took_s]
    for sequence in tuple(core.scheduler.running):
        core.abort(sequence.request.request_id)


def _request(name: str, tokens: int, max_tokens: int) -> Request:
    prompt = tuple(3 + (place * 7 + len(name)) % 251 for place in range(tokens))
    sampling = SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(name, prompt, sampling)


def _until_first_token(core: EngineCore) -> Iterator[float]:
    """Yield the time of each step until the joining request has an output."""
    outputs = list[Output]()
    while not any(output.request_id == "joining" for output in outputs):
        yield cpu_seconds(lambda: outputs.extend(core.step()), torch.get_num_threads())
