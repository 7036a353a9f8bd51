"""Adaptive speculation: how many draft steps the next decode step runs.

A policy decides once, before a step, and receives the result later. It is a plain object of
numbers, without clock, randomness or tensors; its caller measures time.
"""
