"""Errors that end the program with a message instead of a traceback."""


class StartError(Exception):
    """The operator cannot start or continue; the message contains the remedy."""
