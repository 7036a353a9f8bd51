"""Grammars read by the engine and by a second reader."""
