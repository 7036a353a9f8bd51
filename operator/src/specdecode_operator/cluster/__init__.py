"""All I/O with the API server."""
