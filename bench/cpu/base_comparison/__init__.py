"""Measures this checkout and another commit in turns, and compares every figure by name.

Each side runs its own `python -m bench.cpu.engine --quick --only SECTION` in its own
environment, so the two may differ in all their modules. A section is measured on both sides before
the next one begins, in changing order, and a ratio is taken within such a pair.
"""
