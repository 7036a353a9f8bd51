"""The objective InterTokenLatency on a real engine: gaps within the limit, and what it costs.

One engine serves the same streams in turns with and without a limit, which is exchanged as a
running engine exchanges it. A limit is a multiple of the time that the engine's cost curve expects
of plain decoding. A gap is the wall time between two events of a stream, as the core returns them.
Of a gap beyond the limit a choice is the cause only if its step had a draft or a chunk of a prompt.
"""

import math
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from bench.cpu.engine.adaptive import ADAPTIVE, build_adaptable
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import Reason
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore

SIZE = Size(12, 512, heads=8, kv_heads=2, inner=1408, context=1024)
FACTORS = (1.3, 1.6, 2.5)
BATCH_SIZES = (1, 8)
PROMPT_TOKENS, ANSWER_TOKENS = 32, 256
JOINING_PROMPTS, JOINING_TOKENS = 4, 256
JOINING_EVERY_STEPS = 20


@dataclass(slots=True)
class Served:
    """What streams got."""

    gaps_s: list[float] = field(default_factory=list)  # of steps within reach of the limit
    plain_gaps_s: list[float] = field(default_factory=list)  # of those without draft and chunk
    first_token_s: list[float] = field(default_factory=list)  # of the prompts that join
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def within(self, limit_s: float) -> float:
        """Return the share of the gaps within a limit."""
        return statistics.mean(gap_s <= limit_s for gap_s in self.gaps_s)

    def plain_within(self, limit_s: float) -> float:
        """Return the share of plain steps within a limit; 1 if there are none."""
        return 1.0 - _count_above(self.plain_gaps_s, limit_s) / max(len(self.plain_gaps_s), 1)

    def chosen_above(self, limit_s: float) -> float:
        """Return the share of the gaps beyond a limit in which a draft or a chunk was computed."""
        plain = _count_above(self.plain_gaps_s, limit_s)
        return (_count_above(self.gaps_s, limit_s) - plain) / len(self.gaps_s)


def _count_above(gaps_s: list[float], limit_s: float) -> int:
    return sum(gap_s > limit_s for gap_s in gaps_s)


def measure_latency(repeats: int) -> dict[str, dict[str, float]]:
    """Return figures by batch size, with and without prompts that join, and factor."""
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_pair(Path(folder), SIZE, STRONG)
        core = build_adaptable(target, draft, ADAPTIVE, max(BATCH_SIZES) + 1)
    figures = {}
    for batch_size in BATCH_SIZES:
        for joining in (0, JOINING_PROMPTS):
            label = f"b{batch_size}{' with prompts' if joining else ''}"
            for factor in FACTORS:
                cell = _measure_cell(core, batch_size, joining, factor, repeats, label)
                figures[f"{label}, {factor:g} times plain"] = cell
    return figures


def _measure_cell(
    core: EngineCore, batch_size: int, joining: int, factor: float, repeats: int, label: str
) -> dict[str, float]:
    policy = core.scheduler.drafting.policy
    assert isinstance(policy, GoodputPolicy)
    free, limited, ratios = Served(), Served(), list[float]()
    kv_tokens = batch_size * (PROMPT_TOKENS + ANSWER_TOKENS // 2)
    limit_s = math.inf
    for repeat in tqdm(range(repeats + 1), desc=f"{label} {factor:g}"):
        core.reload(policy.table.within(math.inf))
        one = _serve(core, batch_size, joining)
        if not repeat:  # the first one warms up
            limit_s = factor * policy.cost.seconds(batch_size, 0, kv_tokens)
        core.reload(policy.table.within(limit_s))
        other = _serve(core, batch_size, joining)
        if repeat:
            ratios.append(other.rate / one.rate)
            free.gaps_s += one.gaps_s
            limited.gaps_s += other.gaps_s
            limited.plain_gaps_s += other.plain_gaps_s
            limited.steps += other.steps
            free.first_token_s += one.first_token_s
            limited.first_token_s += other.first_token_s
    return {
        "limit_ms": round(1000 * limit_s, 2),
        "within": round(limited.within(limit_s), 4),
        "plain_within": round(limited.plain_within(limit_s), 4),
        "plain_gaps": len(limited.plain_gaps_s),
        "chosen_above": round(limited.chosen_above(limit_s), 4),
        "within_without_limit": round(free.within(limit_s), 4),
        "unreachable": round(1 - len(limited.gaps_s) / limited.steps, 4),
        "gaps": len(limited.gaps_s),
        "rate_to_throughput": round(statistics.median(ratios), 3),
        **_first_token_ms("first_token_ms", limited),
        **_first_token_ms("first_token_ms_without_limit", free),
    }


def _first_token_ms(name: str, served: Served) -> dict[str, float]:
    times_s = served.first_token_s
    if not times_s:
        return {}
    return {
        f"{name}_median": round(1000 * statistics.median(times_s)),
        f"{name}_max": round(1000 * max(times_s)),
    }


def _serve(core: EngineCore, batch_size: int, joining: int) -> Served:
    """Decode `batch_size` streams, which prompts join periodically."""
    for number in range(batch_size):
        core.submit(_request(f"stream {number}", PROMPT_TOKENS, ANSWER_TOKENS))
    served, decoding, submitted_s = Served(), set[str](), dict[str, float]()
    began_s = before_s = time.perf_counter()
    while core.has_work():
        if joining and served.steps == (JOINING_PROMPTS - joining + 1) * JOINING_EVERY_STEPS:
            core.submit(_request(f"joining {joining}", JOINING_TOKENS, 2))
            submitted_s[f"joining {joining}"] = before_s
            joining -= 1
        prompt_tokens = core.counters.prompt_tokens
        outputs = core.step()
        now_s = time.perf_counter()
        decision = core.counters.latest
        if decoding.intersection(output.request_id for output in outputs):
            served.steps += 1
            if decision is not None and decision.reason is not Reason.UNREACHABLE:
                served.gaps_s.append(now_s - before_s)
                if not decision.num_steps and core.counters.prompt_tokens == prompt_tokens:
                    served.plain_gaps_s.append(now_s - before_s)
        for output in outputs:
            if output.request_id in submitted_s:
                served.first_token_s.append(now_s - submitted_s.pop(output.request_id))
        served.tokens += sum(len(output.token_ids) for output in outputs)
        decoding = {output.request_id for output in outputs if output.finish_reason is None}
        before_s = now_s
    served.seconds = before_s - began_s
    return served


def _request(name: str, tokens: int, max_tokens: int) -> Request:
    prompt = tuple(3 + (place * 7 + len(name)) % 251 for place in range(tokens))
    return Request(name, prompt, SamplingParams(0, max_tokens, 0.0, ignore_eos=True))
