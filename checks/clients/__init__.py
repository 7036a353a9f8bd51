"""Clients that people use, each in an environment of its own, against a served engine."""
