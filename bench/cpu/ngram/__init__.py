"""Drafting without a model: what it gains on copied text, what it costs elsewhere, and its time."""
