"""What can go wrong while packing."""


class PackError(Exception):
    """A peer cannot be packed; the text has what, why and the remedy."""
