"""What pruning saves, and whether CUDA graphs do what the passes do: `python -m graphs`."""
