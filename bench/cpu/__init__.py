"""Engine, kernels and server on a processor."""
