"""Packs vLLM and SGLang for a machine without a network: pinned wheels, cut, in small parts.

`stage` installs the wheels of a lock file and removes what the run does not need, `archive` writes
the parts. Nothing of a peer is committed.
"""
