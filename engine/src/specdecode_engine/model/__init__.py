"""From token ids to logits: checkpoints, the Llama decoder, EAGLE heads, and the KV cache.

Weights and the arithmetic on them. Nothing here chooses a token, knows a request or keeps state
between two passes except in the pools that the caller passes in. Arithmetic worth a kernel is in
`specdecode_kernels`.
"""
