"""Drafting without a model: tokens that followed the same context before (NGRAM).

`sources.py` has the three sources: a trie, a suffix tree, and a lookup in the text. They are in C,
compiled on the machine where they run like the kernels for a CPU (`library.py`). `drafter.py` makes
drafts of a batch of what they propose.
"""
