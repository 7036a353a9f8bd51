"""Microseconds of one decision with all that is learned from it."""

import random
import time

from controller.loads import DEEPEST
from controller.policies import Build
from controller.profiles import Profile
from specdecode_engine.adaptive.policy import Feedback
from specdecode_engine.adaptive.request_acceptance import RequestAcceptance

DECODE_STEPS, REPEATS = 500, 7
KV_PER_REQUEST = 512
GOOD, BAD = 0.9, 0.3


def measure_decision(build: Build, profile: Profile, batch_size: int) -> float:
    """Time decide and observe together, requests of two kinds by turns.

    The least of seven means of 500 steps, in processor time, without the making of results.
    """
    draw = random.Random(0)
    kv_tokens = KV_PER_REQUEST * batch_size
    requests = tuple(RequestAcceptance(DEEPEST) for _ in range(batch_size))
    rates = [BAD if place % 2 else GOOD for place in range(batch_size)]
    lengths = [[_length(draw, rate) for rate in rates] for _ in range(DECODE_STEPS)]
    noise = [draw.gauss(1.0, 0.04) for _ in range(DECODE_STEPS)]
    policy = build(profile, 0)
    means = []
    for _ in range(REPEATS):
        total_s = 0.0
        for batch, factor in zip(lengths, noise, strict=True):
            started = time.process_time()
            decision = policy.decide(batch_size, kv_tokens, requests)
            total_s += time.process_time() - started
            depths = decision.verified or (decision.num_steps,) * batch_size
            rows = batch_size + sum(depths)
            seconds = factor * profile.seconds(batch_size, decision.num_steps, kv_tokens, rows)
            accepted = tuple(map(min, batch, depths))
            feedback = Feedback(
                decision,
                batch_size,
                kv_tokens,
                accepted,
                seconds,
                verified=decision.verified,
                requests=requests,
                rows=rows,
            )
            started = time.process_time()
            policy.observe(feedback)
            total_s += time.process_time() - started
        means.append(total_s / DECODE_STEPS)
    return 1e6 * (min(means) - 2 * _clock_s())


def _length(draw: random.Random, rate: float) -> int:
    length = 0
    while length < DEEPEST and draw.random() < rate:
        length += 1
    return length


def _clock_s() -> float:
    """Seconds of reading the clock twice."""
    started = time.process_time()
    for _ in range(DECODE_STEPS):
        time.process_time()
    return (time.process_time() - started) / DECODE_STEPS
