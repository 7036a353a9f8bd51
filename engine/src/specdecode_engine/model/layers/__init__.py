"""Parts of a network that several models share."""
