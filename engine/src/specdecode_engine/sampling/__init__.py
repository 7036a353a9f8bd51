"""The one sampling rule: token n is argmax_v(log p(v) + G(seed, n, v)), p after every filter.

Everything here is a function of logits, committed tokens, parameters and position. Nothing depends
on the draft, the batch or the schedule, which is why speculation cannot change an answer.
"""
