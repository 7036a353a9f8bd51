"""Runs engines, each in a process of its own, and measures cells within it."""
