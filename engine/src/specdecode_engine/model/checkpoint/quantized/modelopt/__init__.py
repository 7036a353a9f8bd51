"""Checkpoints of nvidia-modelopt: what its two files declare, and the layouts of weights."""
