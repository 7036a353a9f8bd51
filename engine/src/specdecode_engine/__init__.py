"""The engine: one process that answers requests over HTTP and decodes them speculatively.

Text exists only in `serve`; torch only in `forward`, `sampling`, `speculate` and `rounds`; deciding
who runs and how deep is pure Python in `schedule`. The engine knows no Kubernetes: it starts from
a boot file or from flags.
"""
