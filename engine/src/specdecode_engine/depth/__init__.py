"""How deep to draft in a round: a table of batch-size ranges and the policies that choose in it.

A policy decides once, at the start of a round, and hears later what became of it. It is a plain
object of numbers: no clock, no randomness, no tensor. Whoever calls it owns time.
"""
