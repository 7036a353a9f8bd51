"""Which objects a resource wants, and which writes they need. Pure."""
