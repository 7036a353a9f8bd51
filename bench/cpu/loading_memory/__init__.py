"""Host memory that loading a checkpoint takes, next to the memory of the model."""
