"""The engine: one process that answers requests over HTTP and decodes them speculatively.

Text exists only in `serve`; torch only in `model`, `sampling`, `speculate`, `graphs` and `steps`.
Deciding who runs (`schedule`) and with how many draft steps (`adaptive`) is pure Python. The engine
knows no Kubernetes: it starts from a boot file or from flags.
"""
