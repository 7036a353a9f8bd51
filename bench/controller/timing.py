"""Microseconds of one decision with all that is learned from it."""

import random
import time

from controller.policies import Build
from controller.profiles import Profile
from specdecode_engine.depth.decision import Feedback

BATCH_SIZE, ROUNDS, REPEATS = 64, 500, 5


def measure_decision(build: Build, profile: Profile) -> float:
    """Time decide and observe together at batch 64; the least of five means, processor time."""
    draw = random.Random(0)
    batches = [tuple(draw.choices(range(8), k=BATCH_SIZE)) for _ in range(ROUNDS)]
    policy = build(profile, 0)
    means = []
    for _ in range(REPEATS):
        spent = 0.0
        for lengths in batches:
            started = time.process_time()
            decision = policy.decide(BATCH_SIZE, 512 * BATCH_SIZE)
            spent += time.process_time() - started
            seconds = profile.seconds(BATCH_SIZE, decision.num_steps, 512 * BATCH_SIZE)
            accepted = tuple(min(length, decision.num_steps) for length in lengths)
            feedback = Feedback(
                decision, BATCH_SIZE, 512 * BATCH_SIZE, accepted, draw.gauss(1.0, 0.04) * seconds
            )
            started = time.process_time()
            policy.observe(feedback)
            spent += time.process_time() - started
        means.append(spent / ROUNDS)
    return 1e6 * min(means)
