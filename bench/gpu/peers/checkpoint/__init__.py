"""Writes a target whose greedy tokens are known, and EAGLE-3 heads whose acceptance is chosen."""
