"""A soak of a served engine: mixed requests for minutes, and what it must give back after."""
