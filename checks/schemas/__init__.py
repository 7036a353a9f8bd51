"""JSON Schemas of the official suite and of real users, read by grammars of the engine."""
