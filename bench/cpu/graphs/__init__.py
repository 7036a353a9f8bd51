"""`python -m bench.cpu.graphs`: graphs that pruning saves, and CUDA graphs against eager steps."""
