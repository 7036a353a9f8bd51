"""Fuzzing of a served engine next to running streams, whose text and pace must not change."""
