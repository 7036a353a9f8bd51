"""Programs that answer prompts, each in the Python that has what it needs; see `answering`."""
