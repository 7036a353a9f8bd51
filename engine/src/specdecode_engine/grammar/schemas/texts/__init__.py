"""Formats and patterns of texts."""
