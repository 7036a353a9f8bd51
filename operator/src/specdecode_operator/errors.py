"""Errors that end the program with a sentence instead of a traceback."""


class StartError(Exception):
    """The operator cannot begin its work; the text says what to do."""
