"""How a trial measures: on the same pods in turns, or on pods of its own. Pure."""
