"""Checks every format of drafts that tests/drafts_zoo/drafts.toml lists on tiny checkpoints.

A format is one module of `formats/` with a tuple `FORMATS` of `DraftFormat`s: a writer of a tiny
target and draft, and a slow reference that recomputes everything. What is checked: errors of the
loader (`loading.py`), drafted tokens (`drafting.py`), acceptance (`acceptance.py`), texts
(`texts.py`) and what the drafter keeps between steps (`states.py`). NGRAM has no checkpoint: an
`NgramFormat` has a slow restatement of its source, and settings that are refused (`ngram.py`).
"""
