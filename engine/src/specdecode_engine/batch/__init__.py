"""Requests, drafts and the batches that the scheduler makes of them."""
