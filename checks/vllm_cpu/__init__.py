"""vLLM on a CPU: its environment, and what it exposes, recorded for tests that run without it."""
