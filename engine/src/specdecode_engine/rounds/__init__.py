"""What one step computes on tensors: an extend round for prompts, a decode round for answers.

A decode round is draft, verify, commit; at depth 0 it is plain decoding, not a second path. The
host hears of a round once, at its end.
"""
