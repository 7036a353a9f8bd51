"""Microseconds of one decision with all that is learned from it."""

import random
import time

from bench.simulation.policy.loads import DEEPEST
from bench.simulation.policy.policies import Build
from bench.simulation.policy.profiles import Profile
from specdecode_engine.adaptive.policy import Feedback

DECODE_STEPS, REPEATS = 500, 7
KV_PER_REQUEST = 512


def measure_decision(build: Build, profile: Profile, batch_size: int) -> float:
    """Time decide and observe together, the making of the feedback included.

    The least of seven means of 500 steps, in processor time.
    """
    draw, kv_tokens = random.Random(0), KV_PER_REQUEST * batch_size
    lengths = [tuple(draw.choices(range(DEEPEST + 1), k=batch_size)) for _ in range(DECODE_STEPS)]
    depths = range(DEEPEST + 1)
    accepted = [[tuple(min(n, steps) for n in batch) for steps in depths] for batch in lengths]
    times = [profile.seconds(batch_size, steps, kv_tokens) for steps in depths]
    noise = [draw.gauss(1.0, 0.04) for _ in range(DECODE_STEPS)]
    policy = build(profile, 0)
    means = []
    for _ in range(REPEATS):
        started = time.process_time()
        for batch, factor in zip(accepted, noise, strict=True):
            decision = policy.decide(batch_size, kv_tokens)
            steps = decision.num_steps
            seconds = times[steps] * factor
            policy.observe(Feedback(decision, batch_size, kv_tokens, batch[steps], seconds))
        means.append((time.process_time() - started) / DECODE_STEPS)
    return 1e6 * min(means)
