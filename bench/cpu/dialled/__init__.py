"""A block drafter next to an EAGLE-3 head of the same acceptance: `make bench-dialled`.

Heads and target have random weights and compute all that trained ones would. What they draft is
replaced: at each drafted position the target's own token with a dialled probability, else another
one. So only time distinguishes the two.
"""
