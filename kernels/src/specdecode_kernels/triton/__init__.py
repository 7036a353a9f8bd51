"""Each op as a Triton kernel with its launcher, one op a file. Arguments are trusted: `ops` checks.

Importing a file here imports Triton, which not every machine has: only `backends` and tests do. A
launcher asks the device nothing and launches by static shapes alone, so a CUDA graph may hold it.
"""
