"""Targets and drafts computed by transformers' own modules, with our ops and our KV cache in them.

Parts whose rows depend on their batch (linear layers, norms, activations, rotary tables) are
replaced; `row_audit` proves for each model that nothing else of that kind is left.
"""
