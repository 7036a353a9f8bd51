"""Which forward passes are worth capturing: worked out from the table, before anything is built.

Numbers in, numbers out: no torch, no clock. What is captured and how it runs is in `graphs`.
"""
