"""Compares every model type of tests/zoo/models.toml with transformers' own forward."""
