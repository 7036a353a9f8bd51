"""Drafters: each drafts tokens for a batch and updates its state after the target verified them.

A drafter owns its model, its KV and the record of which rows it has computed. Drafters do not
import each other, and none decides what is accepted: a new kind of draft is one file.
"""
