"""How many graphs pruning saves, and CUDA graphs against eager steps: `python -m graphs`."""
