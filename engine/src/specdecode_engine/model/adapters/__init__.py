"""The LoRA adapters of an engine: loaded, and chosen for each row."""
