"""The one error of this package: something is wrong with the machine, and here is the remedy."""


class NodeError(Exception):
    """A failure that the message explains to a person, with what to do about it."""
