"""Microseconds of one decision with all that is learned from it."""

import random
import time

from controller.loads import DEEPEST
from controller.policies import Build
from controller.profiles import Profile
from specdecode_engine.adaptive.policy import Feedback

BATCH_SIZE, DECODE_STEPS, REPEATS = 64, 500, 7
KV_TOKENS = 512 * BATCH_SIZE


def measure_decision(build: Build, profile: Profile) -> float:
    """Time decide and observe together at batch 64, the making of the feedback included.

    The least of seven means of 500 steps, in processor time.
    """
    draw = random.Random(0)
    lengths = [tuple(draw.choices(range(DEEPEST + 1), k=BATCH_SIZE)) for _ in range(DECODE_STEPS)]
    depths = range(DEEPEST + 1)
    accepted = [[tuple(min(n, steps) for n in batch) for steps in depths] for batch in lengths]
    times = [profile.seconds(BATCH_SIZE, steps, KV_TOKENS) for steps in depths]
    noise = [draw.gauss(1.0, 0.04) for _ in range(DECODE_STEPS)]
    policy = build(profile, 0)
    means = []
    for _ in range(REPEATS):
        started = time.process_time()
        for batch, factor in zip(accepted, noise, strict=True):
            decision = policy.decide(BATCH_SIZE, KV_TOKENS)
            steps = decision.num_steps
            seconds = times[steps] * factor
            policy.observe(Feedback(decision, BATCH_SIZE, KV_TOKENS, batch[steps], seconds))
        means.append((time.process_time() - started) / DECODE_STEPS)
    return 1e6 * min(means)
