"""How each algorithm drafts: what the start of an engine has to know of it, and the list of all."""
