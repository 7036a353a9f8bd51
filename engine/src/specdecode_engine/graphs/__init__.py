"""CUDA graphs of a decode step's forwards: what to capture, the graphs, and how steps find them.

All graphs share one set of input and output buffers, one memory pool and one stream, so that a
batch computes the same at every num_steps. Steps and drafters call `GraphCache.run`, which replays
a graph or runs the forward eagerly.
"""
