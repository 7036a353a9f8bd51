"""Figures of cells, what they are compared with, and the report."""
