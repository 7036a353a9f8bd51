"""`specdecode-engine check`."""
