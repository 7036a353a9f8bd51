"""Weights of quantized checkpoints, dequantized while they are read, or kept as they are stored.

Models see plain tensors under plain names. One file per format contains its tensors, their layout
and the source of both; `config.py` reads which format a checkpoint has.
"""
