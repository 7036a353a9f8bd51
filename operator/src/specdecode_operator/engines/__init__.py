"""All I/O with engines."""
