"""The OpenAI-compatible API: request bodies, handlers and responses."""
