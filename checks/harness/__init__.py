"""What checks and benchmarks share."""
