"""What the engine counts, and the metrics that it exports."""
