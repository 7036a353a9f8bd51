"""State that the service reloads at run time: speculation tables and API keys."""
