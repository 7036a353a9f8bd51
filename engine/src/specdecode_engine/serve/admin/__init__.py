"""Routes for probes, metrics and the speculation table."""
