"""Drafters: each proposes tokens for a batch and follows what the target computes.

A drafter owns its model, its KV and its notion of how far it has followed each slot. Drafters do
not know each other, and nothing here decides what is accepted: a new kind of draft is one file.
"""
