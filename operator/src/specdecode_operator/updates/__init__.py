"""How an edit reaches the pods of a resource. Pure."""
