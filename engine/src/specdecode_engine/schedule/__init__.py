"""Deciding who runs, on which pages and how deep: pure Python, no torch, no clock, no I/O."""
